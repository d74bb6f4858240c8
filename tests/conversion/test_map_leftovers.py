"""What a --map function leaves running keeps neither the commit nor the command."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.metadata.manifest import open_manifest
from tests.support.records import text_records, write_tfrecords
from tests.support.shell import gristmill, records_of

LEAVES = """
import atexit, os, threading

def forever():
    threading.Event().wait()

def once(leave):
    done = []
    def same(record):
        if not done:
            done.append(1)
            leave()
        return record
    return same

thread = once(lambda: threading.Thread(target=forever, name="theirs").start())
hook = once(lambda: atexit.register(forever))
fork = once(os.fork)
exit = once(lambda: os._exit(0))
"""
MODULE = """
import threading

threading.Thread(target=threading.Event().wait, name="theirs").start()

def same(record):
    return record
"""
BEAM = ("--runner", "DirectRunner")
BEAM_PROCESSES = (
    *(*BEAM, "--", "--direct_running_mode=multi_processing"),
    "--direct_num_workers=2",
)
RECORDS = text_records(200)


@pytest.fixture
def work(tmp_path: pathlib.Path) -> pathlib.Path:
    write_tfrecords(tmp_path / "in.tfrecord", RECORDS)
    (tmp_path / "leaves.py").write_text(LEAVES)
    (tmp_path / "module.py").write_text(MODULE)
    return tmp_path


def convert(work: pathlib.Path, function: str, *options: str):
    command = ("convert", "in.tfrecord", "out", "--num-shards", "2", "--map", function)
    return gristmill(*command, *options, cwd=work)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("module:same", ("--workers", "2")),
        ("leaves:thread", ("--workers", "1")),
        ("leaves:hook", ("--workers", "2")),
        ("leaves:thread", BEAM),
        ("leaves:hook", BEAM_PROCESSES),
    ],
    ids=["workers of a module", "here", "workers", "beam", "processes of beam"],
)
def test_the_dataset_is_committed_and_the_command_ends(
    work: pathlib.Path, function: str, options: tuple[str, ...]
) -> None:
    done = convert(work, function, *options)
    assert done.returncode == 0, done.stderr
    assert "200 records in 2 shards, committed" in done.stdout
    assert open_manifest(str(work / "out")).splits["train"].records == 200
    assert sorted(records_of(work / "out")) == sorted(RECORDS)
    if options == ("--workers", "2"):
        assert "2 of 2 worker processes were killed" in done.stderr
    elif options != BEAM_PROCESSES:
        assert "its process was ended, as the thread theirs did not" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_process_that_comes_back_from_the_function_writes_nothing(
    work: pathlib.Path, workers: str
) -> None:
    done = convert(work, "leaves:fork", "--workers", workers)
    assert done.returncode == 0, done.stderr
    assert "the --map function forked a process" in done.stderr
    assert sorted(records_of(work / "out")) == sorted(RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_early_exit_is_no_success(work: pathlib.Path, workers: str) -> None:
    done = convert(work, "leaves:exit", "--workers", workers)
    assert done.returncode == 1
    assert "os._exit(" in done.stderr
    assert not (work / "out" / "dataset.json").exists()
