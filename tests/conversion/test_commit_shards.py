"""The commit: refuses whatever does not add up."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from gristmill.dataset.base.errors import DataLossError, StorageChangedError
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import (
    check_spans,
    commit_shards,
    finish_split,
)
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    convert_shard,
    make_shard,
    shard_tasks,
)
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    prepared_of,
    varied_records,
)
from tests.support.records import frames_of
from tests.support.shards import collected


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

    @pytest.mark.parametrize("missing", [1, 1000])
    def test_a_file_that_was_not_read_to_its_end(self, made, missing):
        prepared, reports = made
        found = list(reports)
        stop = reports[4].spans[-1].stop_bytes
        found[4] = with_span(reports[4], -1, stop_bytes=stop - missing)
        with pytest.raises(DataLossError) as caught:
            check(prepared, found)
        assert "not read to its end" in str(caught.value)
        assert prepared.files.paths[1] in str(caught.value)
        assert f"expected: {stop:,} bytes" in str(caught.value)
        assert f"got:      byte offset {stop - missing:,}" in str(caught.value)

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


class TestFinishSplit:
    def test_reports_in_any_order_and_twice(self, made):
        prepared, reports = made
        split = finish_split(
            prepared,
            collected([*reversed(reports), *reports], job=prepared.write.id),
        )
        table = read_table(prepared.job.output, split)
        assert list(table.paths) == [report.path for report in reports]
        for shard, report in enumerate(reports):
            assert table.spans(shard) == report.spans
            assert table.digest(shard) == report.written

    def test_a_report_that_lost_a_record(self, made):
        prepared, reports = made
        lost = dataclasses.replace(reports[3], dropped_records=1)
        with pytest.raises(DataLossError, match="lost or added"):
            finish_split(
                prepared,
                collected([*reports[:3], lost, reports[4]], job=prepared.write.id),
            )


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
