"""A run that finished no shard claims nothing: the corrected command runs."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import subprocess
import sys
import threading

import apache_beam as beam
import pytest

from gristmill.dataset.base.errors import (
    InputError,
    JobChangedError,
    StorageChangedError,
    UserFunctionError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.verify import verify
from gristmill.transforms.beam.write_arrayrecords import WriteArrayRecords
from gristmill.transforms.conversion.begin_job import begin_job
from gristmill.transforms.conversion.shard_tasks import make_shard, shard_tasks
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support.conversion import contents, convert, job_of
from tests.support.pipelines import run
from tests.support.records import frames_of, text_records
from tests.support.watched import at_storage

# A function that fails, but not at the first records, on which it is tried.
FAILS = "binascii:unhexlify"
RECORDS = [b"%04x" % number for number in range(10)] + text_records(60)


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "in.tfrecord"
    path.write_bytes(frames_of(RECORDS))
    return path


def with_shards(job: ConversionJob, shards: int) -> ConversionJob:
    plan = PlanOptions(kind="num_shards", value=shards)
    return dataclasses.replace(job, plan=plan)


def assert_whole(output: str, *, shards: int, records: int = len(RECORDS)) -> None:
    """The output is a dataset with these shards, and nothing else is there."""
    found = verify(output, workers=1)
    assert found.findings == ()
    split = open_manifest(output).splits["train"]
    assert (split.shards, split.records) == (shards, records)
    assert len(storage_for(output).list(output)) == shards + 1
    index = storage_for(output).list(layout.join(output, layout.INDEX_DIR))
    assert len(index) == shards + 3


@pytest.mark.one_in(3)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("beam_options", [None, ["--runner=FnApiRunner"]])
def test_a_function_that_fails_and_the_corrected_command(
    source, output: str, overwrite: bool, beam_options
):
    job = job_of(source, output, plan=("num_shards", 3), map=FAILS)
    options = {"beam_options": beam_options}
    with pytest.raises(UserFunctionError):
        run_conversion([job], overwrite=overwrite, **options)
    outcome = run_conversion([with_shards(dataclasses.replace(job, map=None), 2)])
    assert_whole(output, shards=2)
    (note,) = outcome.notes
    assert "had finished no shard, and was replaced" in note
    assert "map was 'binascii:unhexlify', is None" in note
    assert "the plan was 3 shards, is 2 shards" in note


def test_the_splits_of_one_command(source, output: str):
    jobs = [
        job_of(source, output, split=split, map=FAILS) for split in ("train", "test")
    ]
    with pytest.raises(UserFunctionError):
        run_conversion(jobs)
    corrected = [dataclasses.replace(job, map=None) for job in jobs]
    assert len(run_conversion(corrected).notes) == 2
    assert set(open_manifest(output).splits) == {"train", "test"}


KILLED = """
import os, sys
from gristmill.dataset.commit import publish_shard
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.commands.main import main

def die(*args, **options):
    os.kill(os.getpid(), 9)

where, *command = sys.argv[1:]
storage = type(storage_for(command[2]))
if where == "before the list of files":
    true_write = storage.write

    def write(self, path, data, **options):
        if path.endswith(".inputs.npz"):
            die()
        true_write(self, path, data, **options)
    storage.write = write
elif where == "before the first shard":
    publish_shard.ShardPlace.publish = die
elif where == "before its index":
    publish_shard.encode_index = die
main(command)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", ["before the list of files", "before the first shard", "before its index"]
)
def test_a_kill_before_the_first_shard_is_finished(source, output: str, where: str):
    command = ["convert", str(source), output, "--name=data", "--num-shards=3"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, where, *command, "--workers=1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = storage_for(output).list(output)
    assert bool(left) == (where == "before its index")
    convert(job_of(source, output, plan=("num_shards", 2)))
    assert_whole(output, shards=2)
    if "://" not in output:
        assert not [name for name in contents(output) if "tmp" in name]


def test_a_finished_shard_claims_the_output(source, output: str):
    job = job_of(source, output, plan=("num_shards", 3))
    make_shard(next(shard_tasks(begin_job(job).prepared)))
    other = with_shards(job, 2)
    with pytest.raises(JobChangedError, match=r"the plan was 3 shards, is 2 shards"):
        begin_job(other)
    convert(job)
    assert_whole(output, shards=3)


def test_a_shard_that_is_made_on_this_machine_claims_the_output(source, tmp_path):
    job = job_of(source, tmp_path / "out", plan=("num_shards", 3))
    begin_job(job)
    temporary = layout.temporary_dir(job.output, job.name, job.split)
    with (
        storage_for(job.output).temporary(temporary),
        pytest.raises(JobChangedError, match=r"the plan was 3 shards, is 2 shards"),
    ):
        begin_job(with_shards(job, 2))
    convert(with_shards(job, 2))
    assert_whole(job.output, shards=2)


def test_a_worker_of_the_replaced_job_is_told(source, output: str):
    job = job_of(source, output, plan=("num_shards", 3))
    task = next(shard_tasks(begin_job(job).prepared))
    begin_job(with_shards(job, 2))
    with pytest.raises(JobChangedError, match="another conversion has taken over"):
        make_shard(task)
    convert(with_shards(job, 2))
    assert_whole(output, shards=2)


def test_of_two_that_begin_at_once_the_later_has_the_output(
    source, output: str, monkeypatch
):
    first, second = (job_of(source, output, plan=("num_shards", n)) for n in (3, 2))
    held = threading.Event()
    release = threading.Event()

    def hold() -> None:
        held.set()
        assert release.wait(60)

    at_storage(monkeypatch, "write", "inputs.npz", hold)
    errors: list[Exception] = []

    def begin_first() -> None:
        try:
            begin_job(first)
        except StorageChangedError as e:
            errors.append(e)

    thread = threading.Thread(target=begin_first)
    thread.start()
    assert held.wait(60)
    # The first has written one of its two files: the other comes too late.
    prepared = begin_job(second).prepared
    release.set()
    thread.join(60)
    assert len(errors) == 1
    found = PreparedJob.load(output, "data", "train")
    assert found is not None
    assert found.fingerprint == prepared.fingerprint
    convert(second)
    assert_whole(output, shards=2)


def test_a_stranger_is_still_refused(source, tmp_path):
    out = tmp_path / "out"
    begin_job(job_of(source, out, plan=("num_shards", 3)))
    mine = out / layout.shard_name("data", "train", 0, 9)
    mine.write_bytes(b"mine")
    with pytest.raises(InputError, match="there already"):
        begin_job(job_of(source, out, plan=("num_shards", 2)))
    assert mine.read_bytes() == b"mine"


@pytest.mark.slow
def test_a_write_over_a_conversion_that_finished_a_shard(source, output: str):
    job = job_of(source, output, plan=("num_shards", 3), name="out")
    make_shard(next(shard_tasks(begin_job(job).prepared)))
    with pytest.raises(JobChangedError, match="unfinished conversion"):
        run(beam.Create(RECORDS), WriteArrayRecords(output, num_shards=2))
    convert(job)
    assert_whole(output, shards=3)
