"""What could be read before an overwriting command can be read until it commits."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import subprocess
import sys
from typing import Any

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    JobChangedError,
    StorageError,
    UserFunctionError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.text.split_editions import read_unfinished
from gristmill.transforms.beam.job_transforms import ConvertFiles
from gristmill.transforms.beam.write_arrayrecords import WriteArrayRecords
from gristmill.transforms.checking.verification import plan_verify
from gristmill.transforms.checking.verify_shard import verify_shard
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from gristmill.transforms.jobs.conversion_job import ConversionJob
from tests.support.conversion import convert, job_of
from tests.support.editions import files_of
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, run
from tests.support.records import frames_of, text_records, write_array_records
from tests.support.watched import at_storage

OLD = text_records(60)
NEW = [b"%04x" % number for number in range(10)] + text_records(50, seed=1)


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    """The inputs: first those of the old dataset."""
    path = tmp_path / "in.tfrecord"
    path.write_bytes(frames_of(OLD))
    return path


_MARK = re.compile(r"(?<=[.-])([0-9a-f]{16})[.-]")


def without_new(files: dict[str, bytes]) -> dict[str, bytes]:
    """Returns the files that are not of a later write than the first."""
    return {
        name: data
        for name, data in files.items()
        if not _MARK.search(name) and not name.startswith("tmp-")
    }


def marks_in(files: dict[str, bytes], split: str = "train") -> set[str]:
    """Returns the marks of the writes of a split that there are files of."""
    marks = [
        _MARK.search(name)
        for name in files
        if f"-{split}." in name and not name.startswith("tmp-")
    ]
    return {"" if mark is None else mark[1] for mark in marks}


def records_of(output: str, split: str | None = None) -> list[bytes]:
    dataset = loader.open(output, split)
    return dataset.read(range(len(dataset)))


def assert_whole(output: str, records: list[bytes], *, shards: int) -> None:
    """The dataset holds these, and nothing is beside it."""
    found = verify(output, workers=1)
    assert (found.findings, list(found.leftovers)) == ((), [])
    split = open_manifest(output).splits["train"]
    assert split.shards == shards
    assert sorted(records_of(output, "train")) == sorted(records)
    assert marks_in(files_of(output)) == {split.write}


def replacing(source: pathlib.Path, output: str, shards: int = 3) -> ConversionJob:
    return job_of(source, output, plan=("num_shards", shards))


@pytest.fixture
def old(source: pathlib.Path, output: str) -> dict[str, bytes]:
    """The files of a dataset, whose input has changed since."""
    convert(replacing(source, output, 2))
    before = files_of(output)
    source.write_bytes(frames_of(NEW))
    return before


# What ends before the commit changes nothing.


def test_a_function_with_a_typo_is_known_before_anything_is_written(
    source, output: str, old, tmp_path, monkeypatch
):
    (tmp_path / "typo.py").write_text("def typo(record):\n    return recrod\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    job = dataclasses.replace(replacing(source, output), map="typo:typo")
    with pytest.raises(UserFunctionError, match="'recrod' is not defined") as caught:
        run_conversion([job], workers=1, overwrite=True)
    assert f"{source}, byte offset 0" in str(caught.value)
    assert files_of(output) == old


# Several commands at once.


def killed() -> None:
    raise KeyboardInterrupt


def test_a_split_that_is_there_and_one_that_is_not(source, output: str, old):
    jobs = [
        replacing(source, output),
        dataclasses.replace(replacing(source, output), split="more"),
    ]
    run_conversion(jobs, overwrite=True)
    assert verify(output, workers=1).findings == ()
    assert records_of(output, "train") == records_of(output, "more") == NEW
    assert marks_in(files_of(output)) == {open_manifest(output).splits["train"].write}
    assert marks_in(files_of(output), "more") == {""}


# Commands after one that was stopped when it had committed.


@pytest.fixture
def stopped(
    source, output: str, old, monkeypatch: pytest.MonkeyPatch
) -> list[ConversionJob]:
    """The jobs of a command that was stopped before it deleted what it replaced."""
    convert(job_of(source, output, split="test"))
    job = replacing(source, output)
    results = map(make_shard, shard_tasks(begin_job(job, overwrite=True).prepared))
    with monkeypatch.context() as patch:
        at_storage(patch, "write", "dataset.json", killed, after=True)
        with pytest.raises(KeyboardInterrupt):
            commit_shards([job], list(results))
    return [job]


def test_a_command_for_another_split_deletes_what_was_replaced(
    source, output: str, stopped
):
    assert records_of(output, "train") == records_of(output, "test") == NEW
    found = verify(output, workers=1)
    assert found.findings == ()
    assert "data-train.array_record-00001-of-00002" in found.leftovers
    convert(job_of(source, output, split="more"))
    assert_whole(output, NEW, shards=3)


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "whole"])
def test_a_verification_that_an_exchange_overtakes(
    source, output: str, old, quick: bool, monkeypatch
):
    """It has read `dataset.json`, and looks at the files afterwards."""

    def other() -> None:
        convert(replacing(source, output), overwrite=True)

    at_storage(monkeypatch, "read", ".shards.npz", other, after=True)
    with pytest.raises(InvalidDatasetError, match="changed while it was verified"):
        verify(output, quick=quick, workers=1)
    assert verify(output, quick=quick, workers=1).findings == ()


def test_shards_that_an_exchange_replaces_while_they_are_verified(
    source, output: str, old
):
    plan = plan_verify(output)
    assert not plan.findings
    convert(replacing(source, output, 2), overwrite=True)
    for task in plan.tasks:
        with pytest.raises(InvalidDatasetError, match="changed while it was verified"):
            verify_shard(task)


# What there was, and what it is replaced by.


def test_files_of_another_program_stay(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    mine = out / layout.shard_name("data", "train", 0, 1)
    write_array_records(mine, OLD)
    before = mine.read_bytes()
    job = replacing(source, str(out))
    results = map(make_shard, shard_tasks(begin_job(job, overwrite=True).prepared))
    results = list(results)
    (found,) = read_unfinished(str(out), read_manifest(out))
    assert f"split {results[0].task.write.key}: 3 of 3" in found.text()
    commit_shards([job], results)
    clean(str(out), unfinished=True)
    assert mine.read_bytes() == before
    mine.unlink()
    assert_whole(str(out), OLD, shards=3)


@pytest.mark.parametrize("how", ["convert", "write"])
def test_a_dataset_json_of_another_program_is_replaced_without_its_files(
    source, output: str, how: str
):
    storage = storage_for(output)
    place = layout.join(output, layout.DATASET_JSON)
    storage.write(place, b'{"rows": 60}')
    shard = layout.join(output, layout.shard_name("data", "train", 0, 1))
    storage.write(shard, b"not ours")
    if how == "write":
        write(output, OLD)
    else:
        convert(replacing(source, output), overwrite=True)
    clean(output, unfinished=True)
    assert storage.read(shard) == b"not ours"
    storage.delete(shard)
    assert_whole(output, OLD, shards=3)


def test_a_dataset_json_that_was_lost(source, output: str):
    """Nobody knows what it held: its files go, and what was at work is given up."""
    convert(replacing(source, output, 2))
    (more := pathlib.Path(f"{source}-more")).write_bytes(frames_of(NEW[:9]))
    append = dataclasses.replace(replacing(more, output, 1), appends=True)
    results = list(map(make_shard, shard_tasks(begin_job(append).prepared)))
    storage = storage_for(output)
    place = layout.join(output, layout.DATASET_JSON)
    before = storage.stat(place)
    assert before is not None
    storage.write(place, b"{", replaces=before.version)
    convert(replacing(source, output), overwrite=True)
    with pytest.raises(JobChangedError, match="given up"):
        commit_shards([append], results)
    assert records_of(output) == OLD
    found = verify(output, workers=1)
    assert found.findings == ()
    clean(output)
    assert_whole(output, OLD, shards=3)


def test_indexes_in_another_place_are_refused(source, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for folder in (out, elsewhere):
        folder.mkdir()
    (out / "index").symlink_to(elsewhere)
    with pytest.raises(InvalidDatasetError, match="is a symbolic link"):
        convert(replacing(source, str(out), 2))
    assert not [*elsewhere.iterdir()]


FULL_DISK = """
import resource, signal, sys
from gristmill.pipelines.commands.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_disk_that_fills_up(source, tmp_path):
    out = str(tmp_path / "out")
    convert(replacing(source, out, 2))
    before = files_of(out)
    argv = ["convert", str(source), out, "--name=data", "--num-shards=3"]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *argv, "--overwrite", "--workers=1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert without_new(files_of(out)) == before
    convert(replacing(source, out), overwrite=True)
    assert_whole(out, OLD, shards=3)


# Pipelines, drop-ins and writes.


@pytest.mark.slow
@pytest.mark.parametrize("argv", [BUNDLES_TWICE, BUNDLE_BASED], ids=["twice", "tries"])
def test_a_commit_on_a_worker_that_is_repeated(
    source, output: str, old, argv, monkeypatch
):
    def fail() -> None:
        raise StorageError("not at once")

    if argv == BUNDLE_BASED:
        at_storage(monkeypatch, "write", ".shards.npz", fail, times=2)
    jobs = (replacing(source, output),)
    (result, *_) = run(ConvertFiles(jobs=jobs, overwrite=True), argv=argv)
    assert result.manifest == read_manifest(output)
    assert_whole(output, NEW, shards=3)


def write(output: str, records: Any, **options: Any) -> list[Any]:
    given = {"name": "data", "num_shards": 3, "overwrite": True, **options}
    return run(beam.Create(records), WriteArrayRecords(output, **given))
