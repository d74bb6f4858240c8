"""Ownership: no job replaces or deletes inputs, or files that it does not own."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InputError, JobChangedError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.anywhere import index
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    convert_shard,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob, ShardNames
from gristmill.transforms.writing.write_split import WriteJob, begin_write
from tests.support.conversion import contents, convert, job_of, read_output
from tests.support.records import (
    frames_of,
    text_records,
    write_array_records,
)

RECORDS = text_records(40)
# As the stand-ins for other functions name shards: these may be beside the inputs.
BESIDE = ShardNames(kind="beam", prefix="x", suffix=".arrayrecord")


@pytest.fixture
def out(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "in"
    path.write_bytes(frames_of(RECORDS))
    return path


def indexed(folder: pathlib.Path, **options: str) -> None:
    name = "data-train.array_record-00000-of-00001"
    write_array_records(folder / name, RECORDS)
    index(IndexOptions(files=(f"{folder}/{name}",), name="data", **options))


def write_over(folder: pathlib.Path) -> None:
    job = WriteJob(
        output=str(folder),
        name="data",
        split="train",
        num_shards=1,
        shard_bytes=None,
        keyed=False,
        writer=WriterOptions(),
    )
    begin_write(job, b"", groups=1, overwrite=True)


def by_input(
    inputs: pathlib.Path | str, output: pathlib.Path | str, split: str
) -> ConversionJob:
    """Returns a job whose shards are named as its inputs are."""
    names = ShardNames(kind="inputs", suffix=".ar")
    plan = ("match_shards", None)
    return job_of(inputs, output, split=split, names=names, plan=plan)


class TestInputs:
    @pytest.mark.parametrize(
        "name",
        [
            "dataset.json",
            "data-train.array_record-00007-of-00009",
            "index/data-train.array_record-00000-of-00001.index",
            "index/data-train.job.json",
            "errors/data-train.array_record-00000-of-00001.jsonl",
            "tmp-data-train/mine",
        ],
    )
    def test_every_place_that_a_conversion_writes_to(self, out, name):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(frames_of(RECORDS))
        before = contents(out)
        with pytest.raises(InputError, match="an input would be replaced"):
            begin_job(job_of(f"{out}/{name}", out, names=BESIDE), overwrite=True)
        assert contents(out) == before

    def test_a_link_in_the_output_to_a_file_elsewhere(self, out, source):
        name = "data-train.array_record-00000-of-00001"
        (out / name).symlink_to(source)
        with pytest.raises(InputError, match="an input would be replaced"):
            begin_job(job_of(f"{out}/{name}", out, names=BESIDE), overwrite=True)
        assert (out / name).is_symlink()


class TestIndexed:
    def test_shards_that_were_indexed_are_not_overwritten(self, out, source):
        indexed(out)
        before = contents(out)
        shard = "data-train.array_record-00000-of-00001"
        with pytest.raises(InputError, match="did not write") as caught:
            convert(job_of(source, out), overwrite=True)
        assert shard in str(caught.value)
        with pytest.raises(InputError, match="did not write"):
            write_over(out)
        assert contents(out) == before
        # What the message says to do.
        (out / shard).unlink()
        convert(job_of(source, out), overwrite=True)
        assert read_output(out) == RECORDS

    def test_nor_as_files_of_another_split(self, out, source):
        indexed(out, split="mine")
        before = contents(out)
        with pytest.raises(InputError, match="there already"):
            convert(job_of(source, out))
        assert contents(out) == before
        source.write_bytes(frames_of(RECORDS[:9]))
        convert(job_of(source, out), overwrite=True)
        clean(str(out), unfinished=True)
        assert read_output(out) == RECORDS[:9]
        assert read_output(out, "mine") == RECORDS
        after = contents(out)
        assert [name for name in before if before[name] != after[name]] == [
            "dataset.json"
        ]


class TestOneFileOfTwoSplits:
    @pytest.fixture
    def jobs(self, tmp_path, out):
        jobs = []
        for number, split in enumerate(("first", "second")):
            folder = tmp_path / split
            folder.mkdir()
            (folder / "a").write_bytes(frames_of(text_records(40, seed=number)))
            jobs.append(by_input(folder, out, split))
        return jobs

    @pytest.mark.parametrize("committed", [False, True])
    def test_runs_that_began_at_once(self, jobs, out, committed):
        first, second = (next(shard_tasks(begin_job(job).prepared)) for job in jobs)
        result = make_shard(first)
        if committed:
            commit_shards(jobs[:1], [result])
        before = contents(out)
        with pytest.raises(JobChangedError, match="another job has written") as caught:
            make_shard(second)
        assert f"{out}/a.ar" in str(caught.value)
        assert contents(out) == before
        commit_shards(jobs[:1], [result])
        assert read_output(out, "first") == text_records(40, seed=0)

    def test_commit_refuses_the_second(self, jobs, out):
        prepared = [begin_job(job).prepared for job in jobs]
        tasks = [next(shard_tasks(one)) for one in prepared]
        commit_shards(jobs[:1], [make_shard(tasks[0])])
        report = convert_shard(prepared[1], 0)
        before = open_manifest(str(out))
        with pytest.raises(InputError, match="belongs to another split") as caught:
            commit_shards(jobs[1:], [ShardResult(tasks[1], report)])
        assert "a.ar" in str(caught.value)
        assert "split first" in str(caught.value)
        assert open_manifest(str(out)) == before

    def test_index(self, out):
        indexed(out)
        before = contents(out)
        with pytest.raises(InputError, match="belongs to another split"):
            indexed(out, split="mine")
        assert contents(out) == before
        index(
            IndexOptions(
                files=(f"{out}/*0001",), name="data", split="train", overwrite=True
            )
        )
