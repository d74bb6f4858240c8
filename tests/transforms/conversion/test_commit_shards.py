"""The commit: refuses whatever does not add up, and repairs in one pass."""

from __future__ import annotations

import dataclasses
import pathlib
import random

import pytest

from gristmill.dataset.base.errors import DataLossError, InputError, StorageChangedError
from gristmill.dataset.commit.commit import commit_dataset
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.transforms.conversion.begin_job import begin_job
from gristmill.transforms.conversion.commit_shards import (
    close_gaps,
    commit_shards,
    finish_split,
)
from gristmill.transforms.conversion.convert_shard import convert_shard
from gristmill.transforms.conversion.shard_tasks import (
    ShardResult,
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


def never(*args, **options):
    raise AssertionError("nothing is to be made again")


class TestCloseGaps:
    def test_spans_that_meet(self, made):
        prepared, reports = made
        assert close_gaps(prepared, reports, convert=never) == []

    @pytest.mark.parametrize("change", [1, -1])
    def test_a_wrong_begin_is_repaired_from_where_the_range_before_stopped(
        self, made, change
    ):
        prepared, reports = made
        found = list(reports)
        begin = reports[1].spans[0].start_bytes
        found[1] = with_span(reports[1], 0, start_bytes=begin + change)
        asked = []

        def convert_again(prepared, shard, *, first_place):
            asked.append((shard, first_place))
            return convert_shard(prepared, shard, first_place=first_place)

        again = close_gaps(prepared, found, convert=convert_again)
        assert again == [reports[1]]
        assert asked == [(1, begin)]

    @pytest.mark.slow
    def test_each_shard_is_made_again_once_and_in_order(self, tmp_path):
        inner = frames_of([random.Random(n).randbytes(200) for n in range(500)])
        (tmp_path / "in").write_bytes(frames_of([b"a", inner, inner, b"b"]))
        job = job_of(tmp_path / "in", tmp_path / "out", plan=("num_shards", 40))
        prepared = prepared_of(job)
        reports = [convert_shard(prepared, shard) for shard in range(40)]
        asked = []

        def convert_again(prepared, shard, *, first_place):
            asked.append(shard)
            return convert_shard(prepared, shard, first_place=first_place)

        again = close_gaps(prepared, reports, convert=convert_again)
        assert len(asked) == len(set(asked)) > 30
        assert asked == sorted(asked) == [report.shard_index for report in again]
        for report in again:
            reports[report.shard_index] = report
        assert close_gaps(prepared, reports, convert=never) == []

    def test_a_gap_that_stays(self, made):
        prepared, reports = made
        found = list(reports)
        found[2] = with_span(reports[2], 0, start_bytes=7)
        with pytest.raises(DataLossError) as caught:
            close_gaps(prepared, found, convert=lambda *_, **__: found[2])
        message = str(caught.value)
        assert "do not meet" in message
        assert prepared.shard_path(2) in message
        stop = reports[1].spans[-1].stop_bytes
        assert f"begins at byte offset {stop:,}" in message

    def test_a_gap_between_files_cannot_be_repaired(self, made):
        prepared, reports = made
        shard = next(i for i in range(5) if len(reports[i].spans) == 2)
        found = list(reports)
        found[shard] = with_span(reports[shard], 1, start_bytes=5)
        with pytest.raises(DataLossError, match="do not meet"):
            close_gaps(prepared, found, convert=never)

    @pytest.mark.parametrize("missing", [1, 1000])
    def test_a_file_that_was_not_read_to_its_end(self, made, missing):
        prepared, reports = made
        found = list(reports)
        stop = reports[4].spans[-1].stop_bytes
        found[4] = with_span(reports[4], -1, stop_bytes=stop - missing)
        with pytest.raises(DataLossError) as caught:
            close_gaps(prepared, found, convert=never)
        assert "not read to its end" in str(caught.value)
        assert prepared.files.paths[1] in str(caught.value)
        assert f"expected: {stop:,} bytes" in str(caught.value)
        assert f"got:      byte offset {stop - missing:,}" in str(caught.value)

    def test_a_file_that_nobody_read(self, made):
        prepared, reports = made
        found = [
            dataclasses.replace(
                report, spans=tuple(s for s in report.spans if s.file_index == 0)
            )
            for report in reports
        ]
        with pytest.raises(DataLossError, match="not read to its end"):
            close_gaps(prepared, found, convert=never)

    def test_a_compressed_file_that_was_not_read_to_its_end(self, tmp_path):
        import gzip

        data = gzip.compress(frames_of([b"a", b"b"]))
        (tmp_path / "in").write_bytes(data)
        prepared = prepared_of(job_of(tmp_path / "in", tmp_path / "out"))
        report = convert_shard(prepared, 0)
        assert close_gaps(prepared, [report], convert=never) == []
        with pytest.raises(DataLossError, match="not read to its end"):
            close_gaps(prepared, [with_span(report, 0, whole=False)], convert=never)

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
        split, repaired = finish_split(
            prepared,
            collected([*reversed(reports), *reports], job=prepared.fingerprint),
        )
        assert repaired == 0
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
                collected([*reports[:3], lost, reports[4]], job=prepared.fingerprint),
            )

    def test_where_the_data_came_from(self, made, tmp_path):
        prepared, reports = made
        split, _ = finish_split(prepared, collected(reports, job=prepared.fingerprint))
        job = prepared.job
        assert split.source["inputs"] == [f"{tmp_path}/in/*"]
        assert split.source["files"] == 2
        assert split.source["file_bytes"] == int(prepared.files.sizes.sum())
        assert split.source["file_list_digest"] == prepared.files.digest
        assert split.source["options"] == job.options()
        assert split.source["records_digest"] == split.records_digest
        assert pathlib.Path(job.output, split.source["file_list"]).exists()


class TestCommitDataset:
    def test_nothing_is_a_dataset_before(self, made):
        prepared, reports = made
        finish_split(prepared, collected(reports, job=prepared.fingerprint))
        assert "dataset.json" not in contents(prepared.job.output)

    def test_fields_of_later_versions_survive(self, made):
        prepared, reports = made
        split, _ = finish_split(prepared, collected(reports, job=prepared.fingerprint))
        output = prepared.job.output
        extra = {"from the future": [1]}
        later = Manifest(name="data", splits={"train": split}, extra=extra)
        pathlib.Path(output, "dataset.json").write_bytes(later.encode())
        commit_dataset(output, "data", {"train": split}, features={"a": "b"})
        manifest = open_manifest(output)
        assert manifest.extra == {"from the future": [1]}
        assert manifest.features == {"a": "b"}
        # Known features stay when a later commit knows none.
        assert commit_dataset(output, "data", {"train": split}).features == {"a": "b"}

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

    def test_another_name(self, made):
        prepared, reports = made
        split, _ = finish_split(prepared, collected(reports, job=prepared.fingerprint))
        commit_dataset(prepared.job.output, "data", {"train": split})
        with pytest.raises(InputError, match="another name"):
            commit_dataset(prepared.job.output, "other", {"test": split})

    def test_without_any_split(self, made):
        output = made[0].job.output
        with pytest.raises(DataLossError, match="no split"):
            commit_dataset(output, "data", {})
        assert not pathlib.Path(output, "dataset.json").exists()


class TestCommitShards:
    """Every split of every job is in the dataset in the end, or nothing is written."""

    @pytest.fixture
    def jobs(self, tmp_path):
        (tmp_path / "in").write_bytes(frames_of([b"one", b"two"]))
        return [
            job_of(tmp_path / "in", tmp_path / "out", split=split)
            for split in ("train", "test")
        ]

    @pytest.mark.parametrize("made", [0, 1])
    def test_a_job_of_which_nothing_arrived(self, jobs, made: int):
        tasks = [next(shard_tasks(prepared_of(job))) for job in jobs]
        results = [make_shard(task) for task in tasks[:made]]
        with pytest.raises(DataLossError, match="no shard") as caught:
            commit_shards(jobs, results)
        assert f"split {jobs[made].split}" in str(caught.value)
        assert "dataset.json" not in contents(jobs[0].output)

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
