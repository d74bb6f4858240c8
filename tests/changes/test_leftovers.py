"""What killed commands leave, and who deletes it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import RESULT
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.text.printer import text_of
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.jobs.conversion_job import ConversionJob
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import contents, convert, job_of
from tests.support.records import frames_of, text_records

IN_MEMORY = ("--runner=FnApiRunner",)
RECORDS = text_records(60)
UNFINISHED = ".0123456789abcdef.tmp"


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "in.tfrecord"
    path.write_bytes(frames_of(RECORDS[:30]) + b"damaged" + frames_of(RECORDS[30:]))
    return path


def job_in(output: pathlib.Path | str, source: pathlib.Path) -> ConversionJob:
    return job_of(source, output, plan=("num_shards", 2), on_corrupt="skip")


def hidden(output: pathlib.Path) -> list[str]:
    return [name for name in contents(output) if "/." in f"/{name}"]


def assert_clean(output: pathlib.Path) -> None:
    assert hidden(output) == []
    assert not list(output.glob("tmp-*"))
    found = verify(str(output), workers=1)
    assert (found.findings, found.leftovers) == ((), ())
    assert "left over" not in text_of(found)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "place", ["", "index", "errors", "tmp-data-train", "index/.result"]
)
@pytest.mark.parametrize("by", ["the same command", "another split", "overwrite"])
def test_of_a_committed_dataset(source, tmp_path, place: str, by: str):
    output = tmp_path / "out"
    job = job_in(output, source)
    convert(job)
    left = output / place / UNFINISHED
    if place == "index/.result":
        left = output / layout.result_path("data", "train", "0123456789abcdef")
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"half")
    found = verify(job.output, quick=True)
    assert found.findings == ()  # Nothing is wrong with the dataset.
    assert found.leftovers == (str(left.relative_to(output)),)
    assert f"1 file of a command that was killed, or that still runs: {place}" in (
        text_of(found)
    )
    if by == "the same command":
        assert begin_job(job).committed is not None
    elif by == "overwrite":
        convert(job, overwrite=True)
    else:
        convert(job_of(source, output, split="test", on_corrupt="skip"))
        if place in ("tmp-data-train", "index/.result"):
            assert left.exists()  # Of another split: somebody may be at work.
            return
    assert_clean(output)


def test_what_cannot_be_deleted_does_not_make_a_commit_fail(source, tmp_path):
    output = tmp_path / "out"
    for directory in ("", "index"):
        (output / directory / UNFINISHED).mkdir(parents=True)
    result = layout.result_path("data", "train", "0123456789abcdef")
    os.mkfifo(output / result)
    convert(job_in(output, source))
    assert begin_job(job_in(output, source)).committed is not None
    assert (output / "index" / UNFINISHED).is_dir()


def test_temporary_files_that_somebody_writes_stay(source, tmp_path):
    output = tmp_path / "out"
    temporary = layout.temporary_dir(str(output), "data", "train")
    with storage_for(str(output)).temporary(temporary) as local:
        pathlib.Path(local).write_bytes(b"half")
        convert(job_in(output, source))
        assert pathlib.Path(local).read_bytes() == b"half"
        (left,) = verify(str(output), quick=True).leftovers
        assert left == f"tmp-data-train/{pathlib.Path(local).name}"
    begin_job(job_in(output, source))
    assert_clean(output)


def test_of_a_split_that_was_never_finished(source, tmp_path):
    output = tmp_path / "out"
    convert(job_in(output, source))
    begin_job(job_of(source, output, split="test", on_corrupt="skip"))
    left = output / "tmp-data-test" / UNFINISHED
    left.parent.mkdir()
    left.write_bytes(b"half")
    found = verify(str(output), quick=True)
    assert found.findings == ()
    assert found.leftovers == (
        *("index/data-test.inputs.npz", "index/data-test.job.json"),
        f"tmp-data-test/{left.name}",
    )


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_results_of_killed_runs_in_a_bucket(source, bucket: GcsServer, overwrite: bool):
    job = job_in("gs://bucket/out", source)
    run_conversion([job], beam_options=IN_MEMORY)
    names = set(bucket.objects.buckets["bucket"])
    assert not [name for name in names if "/." in name]
    result = layout.result_path("data", "train", "0123456789abcdef")
    bucket.objects.put("bucket", f"out/{result}", b"x")
    found = verify(job.output, quick=True)
    assert (found.findings, found.leftovers) == ((), (result,))
    run_conversion([job], beam_options=IN_MEMORY, overwrite=overwrite)
    mark = open_manifest(job.output).splits["train"].write
    assert bool(mark) == overwrite
    found = {
        name.replace(f"-{mark}-", "-").replace(f".{mark}.", ".") if mark else name
        for name in bucket.objects.buckets["bucket"]
    }
    assert found == names
    assert verify(job.output, quick=True, beam_options=IN_MEMORY).leftovers == ()


KILLED_RUNNER = """
import os, sys
import gristmill.pipelines.beam.run_pipeline as beam_run
from gristmill.pipelines.commands.main import main
from gristmill.pipelines.text.printer import text_of
true_wait = beam_run._wait
# Killed after the pipeline is done, before its result is taken: no storage is used.
def wait(result):
    true_wait(result)
    os.kill(os.getpid(), 9)
beam_run._wait = wait
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_beam_run_that_is_killed_before_it_takes_its_result(source, tmp_path):
    command = ["convert", str(source), "out", "--on-corrupt=skip"]
    runner = ["--name=data", "--num-shards=2", "--runner=FnApiRunner"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_RUNNER, *command, *runner],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    output = tmp_path / "out"
    assert open_manifest(str(output)).splits["train"].records == len(RECORDS)
    (left,) = hidden(output)
    assert RESULT.parse(left)
    assert verify(str(output), quick=True).leftovers == (left,)
    done = subprocess.run(
        [sys.executable, "-m", "gristmill", *command, *runner],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert_clean(output)
