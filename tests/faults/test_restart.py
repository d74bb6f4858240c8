"""Conversions that stopped half way, and what is found in the output by the next."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil

import pytest

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import (
    FormatVersionError,
    InputError,
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.pipelines.verify import verify
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    convert_shard,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.indexing.index_job import (
    commit_index,
    index_shard,
    plan_index,
)
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    ShardNames,
    load_prepared,
)
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support.conversion import (
    contents,
    convert,
    finished_shard,
    job_of,
    prepared_of,
    read_output,
    varied_records,
)
from tests.support.records import frames_of
from tests.support.shards import collected
from tests.support.watched import at_storage

RECORDS = varied_records(300, seed=1)
SHARDS = 6


@pytest.fixture
def inputs(tmp_path) -> pathlib.Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        part = RECORDS[number * 100 : (number + 1) * 100]
        (folder / str(number)).write_bytes(frames_of(part))
    return folder


@pytest.fixture
def job(inputs, tmp_path) -> ConversionJob:
    return job_of(inputs, tmp_path / "out", plan=("num_shards", SHARDS))


def states(directory: str) -> dict[str, tuple[int, int]]:
    """Returns what would change if a file were written again."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in pathlib.Path(directory).rglob("*")
        if path.is_file()
    }


def shard_file(job: ConversionJob, shard: int) -> pathlib.Path:
    name = f"{job.name}-{job.split}.array_record-{shard:05d}-of-{SHARDS:05d}"
    return pathlib.Path(job.output, name)


def index_file(job: ConversionJob, shard: int) -> pathlib.Path:
    return pathlib.Path(job.output, "index", f"{shard_file(job, shard).name}.index")


class TestUnfinished:
    """What a crash, of the program or of the machine, can leave."""

    @pytest.fixture
    def half_done(self, job) -> ConversionJob:
        prepared = prepared_of(job)
        for shard in (0, 2, 5):
            convert_shard(prepared, shard)
        return job

    @pytest.mark.parametrize("max_corrupt", [100, 7])
    def test_an_end_between_the_two_files_of_the_description(
        self, job, monkeypatch, max_corrupt: int
    ):
        def killed():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            at_storage(patch, "write", ".inputs.npz", killed)
            with pytest.raises(KeyboardInterrupt):
                begin_job(job)
        assert list(contents(job.output)) == ["index/data-train.job.json"]
        convert(dataclasses.replace(job, max_corrupt=max_corrupt))
        assert read_output(job.output) == RECORDS

    def test_a_lost_list_of_files_is_written_again(self, half_done):
        inputs = pathlib.Path(half_done.output, "index", "data-train.inputs.npz")
        before = inputs.read_bytes()
        finished = shard_file(half_done, 2).stat()
        inputs.unlink()
        convert(half_done)
        assert inputs.read_bytes() == before
        assert shard_file(half_done, 2).stat() == finished
        assert read_output(half_done.output) == RECORDS

    @pytest.mark.parametrize(
        "harm",
        [
            lambda shard, index: index.write_bytes(index.read_bytes()[:-1]),
            lambda shard, index: index.write_bytes(index.read_bytes()[:50]),
            lambda shard, index: index.write_bytes(b""),
            lambda shard, index: index.write_bytes(bytes(index.stat().st_size)),
            lambda shard, index: index.write_bytes(
                index.read_bytes()[:-9] + b"?" + index.read_bytes()[-8:]
            ),
            lambda shard, index: index.unlink(),
            lambda shard, index: shard.unlink(),
            lambda shard, index: os.truncate(shard, shard.stat().st_size - 1),
            lambda shard, index: shard.write_bytes(b""),
        ],
        ids=[
            *("index short", "index very short", "index empty", "index zeros"),
            *("index flipped", "index gone", "shard gone", "shard short"),
            "shard empty",
        ],
    )
    def test_what_is_not_whole_is_made_again(self, half_done, tmp_path, harm):
        harm(shard_file(half_done, 2), index_file(half_done, 2))
        prepared = prepared_of(half_done)
        assert finished_shard(prepared, 2) is None
        assert finished_shard(prepared, 0) is not None
        convert(half_done)
        assert read_output(half_done.output) == RECORDS
        undisturbed = dataclasses.replace(half_done, output=str(tmp_path / "fresh"))
        convert(undisturbed)
        assert contents(half_done.output) == contents(undisturbed.output)

    def test_an_index_of_another_version_is_not_overwritten(self, half_done):
        data = bytearray(index_file(half_done, 2).read_bytes())
        data[8] += 1
        index_file(half_done, 2).write_bytes(bytes(data))
        with pytest.raises(FormatVersionError):
            convert(half_done)

    def test_a_missing_shard_is_named_at_the_commit(self, half_done):
        from gristmill.dataset.base.errors import DataLossError
        from gristmill.transforms.conversion.commit_shards import finish_split

        prepared = prepared_of(half_done)
        reports = [finished_shard(prepared, shard) for shard in (0, 2, 5)]
        with pytest.raises(DataLossError) as caught:
            finish_split(prepared, collected(reports, job=prepared.write.id))
        assert "3 of 6 shards were not made" in str(caught.value)
        assert shard_file(half_done, 1).name in str(caught.value)


class TestChanged:
    """A run with other options or inputs than the unfinished one before it."""

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            (
                {"plan": PlanOptions(kind="num_shards", value=7)},
                "the plan was 6 shards, is 7 shards",
            ),
            (
                {"plan": PlanOptions(kind="shard_bytes", value=6)},
                "is 6 bytes of input a shard",
            ),
            ({"writer": WriterOptions(group_size=2)}, "writer.group_size was 1, is 2"),
            ({"writer": WriterOptions(compression="snappy")}, "writer.compression was"),
            ({"map": "os.path:basename"}, "map was None, is 'os.path:basename'"),
            ({"names": ShardNames(kind="beam", prefix="x")}, "names.kind was 'tfds'"),
        ],
        ids=str,
    )
    def test_options(self, job, change, difference):
        convert_shard(prepared_of(job), 0)
        before = states(job.output)
        taken = begin_job(dataclasses.replace(job, **change))
        (note,) = taken.notes
        assert difference in note
        assert f"gristmill clean --unfinished {job.output}" in note
        make_shard(next(shard_tasks(taken.prepared)))
        assert before.items() <= states(job.output).items()
        # The first one goes on, and what commits later is told.
        convert(job)
        assert read_output(job.output) == RECORDS
        with pytest.raises(JobChangedError, match="made with other options or inputs"):
            begin_job(dataclasses.replace(job, **change))

    def test_code_of_the_map_function(self, job, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        module = tmp_path / "map_that_changes.py"
        module.write_text("def keep(record):\n    return record\n")
        job = dataclasses.replace(job, map="map_that_changes:keep")
        convert_shard(prepared_of(job), 0)
        assert prepared_of(job).write.id == prepared_of(job).write.id
        module.write_text("def keep(record):\n    return record + b'!'\n")
        (note,) = begin_job(job).notes
        assert "function was edited" in note

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            (lambda d: (d / "9").write_bytes(frames_of([b"x"])), "1 input files new: "),
            (lambda d: (d / "1").unlink(), "1 input files gone: "),
            (lambda d: (d / "1").write_bytes(frames_of([b"x"])), "files changed: "),
            (lambda d: (d / "1").rename(d / "7"), "new: "),
        ],
        ids=["new", "gone", "changed", "renamed"],
    )
    def test_inputs(self, job, inputs, change, difference):
        convert_shard(prepared_of(job), 0)
        change(inputs)
        (note,) = begin_job(job).notes
        assert difference in note
        assert f"{inputs}/" in note
        convert(job)
        assert len(read_output(job.output)) >= 200
        clean(job.output, unfinished=True)
        found = verify(job.output, workers=1)
        assert (found.findings, found.leftovers) == ((), ())

    def test_a_process_that_lives_on_sees_what_changed(self, job):
        # Workers outlive a run: the description that they know can be an old one.
        first = prepared_of(job)
        assert load_prepared(first.write).job.max_corrupt == 100
        prepared_of(dataclasses.replace(job, max_corrupt=7))
        assert load_prepared(first.write).job.max_corrupt == 7
        results = [make_shard(task) for task in shard_tasks(first)]
        convert(dataclasses.replace(job, writer=WriterOptions(group_size=3)))
        # Work of another command hinders nobody: what was made meanwhile is refused.
        assert load_prepared(first.write).job.max_corrupt == 7
        with pytest.raises(StorageChangedError, match="has changed the split while"):
            commit_shards([job], results)
        clean(job.output, unfinished=True)
        with pytest.raises(JobChangedError, match="another command has made the split"):
            load_prepared(first.write)

    def test_a_job_without_description_belongs_to_nobody(self, job, tmp_path):
        task = next(shard_tasks(prepared_of(job)))
        shutil.rmtree(job.output)
        with pytest.raises(JobChangedError, match="got:      no such split"):
            make_shard(task)

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"job": {"inputs": 3}}'])
    def test_a_description_that_cannot_be_read(self, job, text):
        prepared_of(job)
        path = pathlib.Path(job.output, "index", "data-train.job.json")
        path.write_text(text)
        convert(job)
        assert read_output(job.output) == RECORDS
        clean(job.output)
        assert not path.exists()
        assert verify(job.output, workers=1).leftovers == ()


class TestCommitted:
    """A run over a dataset that is there already."""

    def test_the_same_again_does_nothing(self, job):
        first = convert(job)
        before = states(job.output)
        taken = begin_job(job)
        assert taken.committed == first.manifest
        results = [make_shard(task) for task in shard_tasks(taken.prepared)]
        assert all(result.report is not None for result in results)
        assert states(job.output) == before

    def test_a_split_without_description_is_known_by_the_dataset(self, job):
        convert(job)
        pathlib.Path(job.output, "index", "data-train.job.json").unlink()
        assert begin_job(job).committed is not None
        other = dataclasses.replace(job, writer=WriterOptions(group_size=4))
        with pytest.raises(JobChangedError, match="from another source"):
            convert(other)
        convert(other, overwrite=True)
        assert read_output(job.output) == RECORDS

    @pytest.mark.parametrize("lost", ["shard", "half a shard", "index", "table"])
    def test_what_was_lost_since_is_made_again(self, job, lost):
        manifest = convert(job).manifest
        split = manifest.splits["train"]
        shard = read_table(job.output, split).paths[1]
        paths = {"index": f"index/{shard}.index", "table": split.table}
        path = pathlib.Path(job.output, paths.get(lost, shard))
        before = {p: s for p, s in states(job.output).items() if "00000" in p}
        assert before
        if lost == "half a shard":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.unlink()
        assert convert(job).manifest == manifest
        assert read_output(job.output) == RECORDS
        assert before.items() <= states(job.output).items()
        assert begin_job(job).committed == manifest

    def test_a_split_that_was_indexed_since_is_not_what_was_converted(self, job):
        manifest = convert(job).manifest
        shards = sorted(pathlib.Path(job.output).glob("*.array_record-*"))
        shards[0].unlink()
        tasks = plan_index([*map(str, shards[1:])], split="train", overwrite=True)
        commit_index(Gathered.of(map(index_shard, tasks)), inputs=["*"])
        left = open_manifest(job.output).splits["train"].records
        assert left < manifest.splits["train"].records
        with pytest.raises(JobChangedError, match="from another source"):
            convert(job)


class TestOverwrite:
    def test_everything_of_the_split_goes_and_nothing_else(self, job, tmp_path):
        (tmp_path / "more").write_bytes(frames_of([b"one", b"two"]))
        test = job_of(tmp_path / "more", job.output, split="test")
        convert(job, test)
        stranger = pathlib.Path(job.output, "notes.txt")
        stranger.write_text("mine")
        others = {
            p: s
            for p, s in states(job.output).items()
            if "data-test" in p or "notes" in p
        }
        smaller = dataclasses.replace(job, plan=PlanOptions(kind="num_shards", value=2))
        convert(smaller, overwrite=True)
        assert others.items() <= states(job.output).items()
        assert read_output(job.output) == RECORDS
        assert read_output(job.output, "test") == [b"one", b"two"]
        names = {path.name for path in pathlib.Path(job.output).rglob("*train*")}
        mark = open_manifest(job.output).splits["train"].write
        assert names == {
            *(f"data-train.array_record-{mark}-00000-of-00002",),
            *(f"data-train.array_record-{mark}-00001-of-00002",),
            *(f"data-train.array_record-{mark}-00000-of-00002.index",),
            *(f"data-train.array_record-{mark}-00001-of-00002.index",),
            *(f"data-train.{mark}.job.json", f"data-train.{mark}.inputs.npz"),
            f"data-train.{mark}.shards.npz",
        }

    @pytest.mark.parametrize(
        "harm",
        [
            lambda out: (out / "dataset.json").write_text("{"),
            lambda out: (out / "index" / "data-train.shards.npz").unlink(),
            lambda out: (out / "index" / "data-train.shards.npz").write_bytes(b"PK"),
            lambda out: (out / "index" / "data-train.inputs.npz").unlink(),
            lambda out: (out / "index" / "data-train.inputs.npz").write_bytes(b"PK"),
        ],
        ids=["manifest", "table gone", "table", "inputs gone", "inputs"],
    )
    def test_what_cannot_be_read_is_replaced(self, job, harm):
        convert(job)
        harm(pathlib.Path(job.output))
        other = dataclasses.replace(job, plan=PlanOptions(kind="num_shards", value=4))
        with pytest.raises((InvalidDatasetError, StorageError, JobChangedError)):
            convert(other)
        convert(other, overwrite=True)
        assert read_output(job.output) == RECORDS
        clean(job.output)
        assert len(list(pathlib.Path(job.output).glob("*record-*-of-*"))) == 4
        assert verify(job.output, workers=1).leftovers == ()


class TestOutput:
    def test_files_of_others_are_not_overwritten(self, job):
        stranger = shard_file(job, 3)
        stranger.parent.mkdir()
        stranger.write_text("mine")
        with pytest.raises(InputError) as caught:
            convert(job)
        assert str(stranger) in str(caught.value)
        assert contents(job.output) == {stranger.name: b"mine"}
        convert(job, overwrite=True)
        assert read_output(job.output) == RECORDS
        clean(job.output, unfinished=True)
        assert stranger.read_text() == "mine"

    # The system refuses to let a file grow, as a full disk does.
