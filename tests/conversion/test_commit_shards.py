"""The commit: refuses whatever does not add up."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import DataLossError, StorageChangedError
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import (
    check_spans,
    commit_shards,
)
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    convert_shard,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    prepared_of,
    varied_records,
)
from tests.support.records import frames_of
from tests.support.shards import report


@pytest.fixture
def made(tmp_path):
    """A job of two files in five shards, and the reports of its shards."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        records = varied_records(60, seed=number)
        (tmp_path / "in" / str(number)).write_bytes(frames_of(records))
    job = job_of(tmp_path / "in", tmp_path / "out", plan=("num_shards", 5))
    prepared = prepared_of(job)
    return prepared, [convert_shard(prepared, shard) for shard in range(5)]


def with_span(report, number: int, **changes):
    spans = list(report.spans)
    spans[number] = dataclasses.replace(spans[number], **changes)
    return dataclasses.replace(report, spans=tuple(spans))


def check(prepared, reports) -> None:
    check_spans(ShardTable.of(reports).columns, prepared.files)


class TestSpans:
    @pytest.mark.parametrize("change", [1, -1])
    def test_a_wrong_begin_is_refused_with_the_place_and_the_cure(self, made, change):
        prepared, reports = made
        begin = reports[1].spans[0].start_bytes
        found = list(reports)
        found[1] = with_span(reports[1], 0, start_bytes=begin + change)
        with pytest.raises(DataLossError, match="do not meet") as caught:
            check(prepared, found)
        assert caught.value.where == prepared.files.paths[0]
        assert f"byte offset {begin:,}" in caught.value.expected
        assert f"byte offset {begin + change:,}" in caught.value.got
        assert "--whole-files" in caught.value.cure

    @pytest.mark.parametrize("change", [frames_of([b"more"]), b""])
    def test_an_input_that_is_written_meanwhile(self, tmp_path, change):
        path = tmp_path / "in"
        path.write_bytes(frames_of(varied_records(100, seed=3)))
        prepared = prepared_of(job_of(path, tmp_path / "out", plan=("num_shards", 4)))
        convert_shard(prepared, 0)
        path.write_bytes(path.read_bytes() + change)
        with pytest.raises(StorageChangedError) as caught:
            convert_shard(prepared, 1)
        assert str(path) in str(caught.value)


class TestCommitDataset:
    @pytest.mark.parametrize("lost", ["data-train.array_record-00001", "index"])
    def test_files_that_went_after_they_were_written(self, made, lost):
        prepared, reports = made
        output = pathlib.Path(prepared.job.output)
        found = [ShardResult(task, None) for task in shard_tasks(prepared)]
        results = [r._replace(report=reports[r.task.shard]) for r in found]
        (path,) = [
            path
            for path in output.rglob("data-train.array_record-00001*")
            if str(path.relative_to(output)).startswith(lost)
        ]
        path.unlink()
        with pytest.raises(DataLossError, match=r"00001-of-.*missing") as caught:
            commit_shards([prepared.job], results)
        assert "run the same command again" in str(caught.value)
        assert "dataset.json" not in contents(str(output))


class TestCommitShards:
    """Every split of every job is in the dataset in the end, or nothing is written."""

    @pytest.fixture
    def jobs(self, tmp_path):
        (tmp_path / "in").write_bytes(frames_of([b"one", b"two"]))
        return [
            job_of(tmp_path / "in", tmp_path / "out", split=split)
            for split in ("train", "test")
        ]

    @pytest.mark.parametrize("others", [0, 1])
    def test_a_split_that_was_there_and_is_gone(self, jobs, others: int):
        """Somebody may delete it, once it was found that nothing is to do."""
        train, test = jobs
        convert(train)
        done = ShardResult(next(shard_tasks(begin_job(train).prepared)), None)
        tasks = [next(shard_tasks(prepared_of(job))) for job in (test,)[:others]]
        results = [done, *map(make_shard, tasks)]
        pathlib.Path(train.output, "dataset.json").unlink()
        with pytest.raises(DataLossError, match="gone") as caught:
            commit_shards([train, test][: others + 1], results)
        assert "train" in str(caught.value)
        assert "dataset.json" not in contents(train.output)


def files_of(sizes: list[int], compressed: list[bool]) -> InputFiles:
    return InputFiles(
        paths=[f"/in/{file}" for file in range(len(sizes))],
        sizes=np.array(sizes, np.int64),
        versions=["1"] * len(sizes),
        compressions=np.array(compressed, np.uint8),
        noted_ns=np.zeros(len(sizes), np.int64),
    )


@st.composite
def conversions(draw) -> tuple[InputFiles, list[ShardReport]]:
    """Draws files, the cuts in them and where frames begin; then changes one number."""
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    compressed = [bool(size) and draw(st.booleans()) for size in sizes]
    spans: list[SourceSpan] = []
    for file, size in enumerate(sizes):
        cuts = [] if compressed[file] else draw(st.sets(st.integers(1, 11)))
        edges = [0, *sorted(cut for cut in cuts if cut < size), size]
        begins = {0, size, *draw(st.sets(st.integers(0, 12)))}
        for begin, end in itertools.pairwise(edges):
            start = min(frame for frame in begins if frame >= begin)
            stop = min(frame for frame in begins if frame >= end)
            here = start < end
            if begin < end:
                spans.append(
                    SourceSpan(
                        file_index=file,
                        begin_bytes=begin,
                        end_bytes=-1 if compressed[file] else end,
                        start_bytes=start if here else None,
                        stop_bytes=stop if here else None,
                        records=1,
                        whole=compressed[file],
                    )
                )
    if spans and draw(st.booleans()):
        number = draw(st.integers(0, len(spans) - 1))
        change: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {"start_bytes": 3},
                    {"start_bytes": None, "stop_bytes": None},
                    {"stop_bytes": 5},
                    {"end_bytes": 9},
                    {"whole": False},
                ]
            )
        )
        spans[number] = dataclasses.replace(spans[number], **change)
    reports = []
    while spans or not reports:
        taken = draw(st.integers(0, 3)) if reports or spans else 0
        reports.append(
            dataclasses.replace(
                report(len(reports), spans=0), spans=tuple(spans[:taken])
            )
        )
        del spans[:taken]
    return files_of(sizes, compressed), reports


def joins(reports: list[ShardReport], files: InputFiles) -> bool:
    """Follows the spans of each file one by one."""
    reached: dict[int, tuple[int, bool]] = {}
    for span in itertools.chain.from_iterable(one.spans for one in reports):
        before, _ = reached.get(span.file_index, (0, False))
        if span.start_bytes is None or span.stop_bytes is None:
            # No frame begins here: right if the frame before reaches over it.
            if not before >= span.end_bytes >= 0:
                return False
        elif span.start_bytes != before:
            return False
        else:
            reached[span.file_index] = span.stop_bytes, span.whole
    for file, size in enumerate(files.sizes.tolist()):
        stop, whole = reached.get(file, (0, False))
        if not (stop == size if files.sized[file] else whole or not size):
            return False
    return True


@pytest.mark.slow
@settings(max_examples=200)
@given(conversions())
def test_columns_say_what_spans_one_by_one_say(drawn):
    files, reports = drawn
    columns = ShardTable.of(reports).columns
    if joins(reports, files):
        check_spans(columns, files)
    else:
        with pytest.raises(DataLossError):
            check_spans(columns, files)
