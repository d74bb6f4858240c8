"""`gristmill convert`, as a shell calls it: here and by Beam's runners."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.support.records import text_records, write_tfrecords
from tests.support.shell import (
    gristmill,
    records_of,
    succeeded,
    write_source,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def dataset(source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("dataset") / "texts"
    succeeded("convert", "*.tfrecord", output, "--num-shards", "5", cwd=source)
    return output


@pytest.mark.slow
def test_second_run_says_so_and_other_options_are_an_error(source, dataset):
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*")}
    text = succeeded("convert", "*.tfrecord", dataset, "--num-shards", "5", cwd=source)
    assert "committed already" in text
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*")} == before
    done = gristmill("convert", "*.tfrecord", dataset, "--num-shards", "4", cwd=source)
    assert done.returncode == 2
    assert "the plan was 5 shards, is 4 shards" in done.stderr
    assert "--overwrite" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), marks=pytest.mark.soak),
        ("--", "--direct_running_mode=multi_processing"),
    ],
    ids=["in memory", "processes"],
)
def test_beam_error_is_our_message(tmp_path, options):
    (tmp_path / "bad.tfrecord").write_bytes(b"\xfe" * 40)
    done = gristmill(
        *("convert", "bad.tfrecord", "out", "--runner", "FnApiRunner", *options),
        cwd=tmp_path,
    )
    assert done.returncode in (1, 3)
    message = done.stderr[done.stderr.rindex("error: not a TFRecord file") :]
    assert "bad.tfrecord, byte offset 0" in message
    assert "while running" not in message


BEAM_PROCESSES = (
    *("--runner", "FnApiRunner", "--", "--direct_running_mode=multi_processing"),
    "--direct_num_workers=2",
)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("options", [("--workers", "2"), BEAM_PROCESSES])
def test_killed_worker_is_an_error_and_a_rerun_finishes(tmp_path, options):
    (tmp_path / "slow.py").write_text(
        "import itertools, os, time\n"
        "calls = itertools.count(1)\n"
        "def slow(record):\n"
        "    if next(calls) > 10:  # It is tried on so many, in another process.\n"
        "        open(f'worker-{os.getpid()}', 'w').close()\n"
        "    if not os.path.exists('go'):\n"
        "        time.sleep(0.1)\n"
        "    return record\n"
    )
    write_tfrecords(tmp_path / "in.tfrecord", text_records(1000))
    command = [
        *(
            sys.executable,
            "-m",
            "gristmill",
            "convert",
            "in.tfrecord",
        ),
        *("out", "--num-shards", "4", "--map", "slow:slow", *options),
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not (workers := sorted(tmp_path.glob("worker-*"))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(int(workers[0].name.partition("-")[2]), signal.SIGKILL)
        (tmp_path / "go").touch()
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert b"a worker process ended without a result" in stderr
    assert not (tmp_path / "out" / "dataset.json").exists()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert records_of(tmp_path / "out") == text_records(1000)
