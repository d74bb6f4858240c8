"""The command line where the system refuses: no room, few files, little memory."""

from __future__ import annotations

import json
import pathlib
import resource
import subprocess
import sys

import pytest

from tests.support.datasets import convert
from tests.support.records import text_records, write_tfrecords


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    """A directory with `in` (TFRecords) and `out` (a dataset of 12 shards)."""
    place = tmp_path_factory.mktemp("limits")
    write_tfrecords(place / "in", text_records(100))
    convert(place, [text_records(20, seed=n) for n in range(12)])
    return place


COMMANDS = {
    "convert": ("convert", "in", "{new}", "--num-shards=2", "--workers=2"),
    "alone": ("convert", "in", "{new}", "--workers=1"),
    "verify": ("verify", "out", "--workers=2"),
    "index": ("index", "out/*array_record*", "--overwrite"),
    "inspect": ("inspect", "out"),
    "head": ("head", "out"),
    "trace": ("trace", "out", "--batch-size=3", "--step=1", "--row=1", "--show"),
    "bench": ("bench-loader", "out", "--seconds=0.1", "--batch-size=20"),
}


def run(
    command: str, place: pathlib.Path, new: pathlib.Path, *more: str, **options
) -> subprocess.CompletedProcess[str]:
    arguments = [word.format(new=new) for word in COMMANDS[command]]
    return subprocess.run(
        [sys.executable, "-m", "gristmill", *arguments, *more],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        **({"stdout": subprocess.PIPE} | options),
    )


def check_message(done: subprocess.CompletedProcess[str]) -> None:
    """Checks that a command has succeeded, or said what to do."""
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert ("\n  to do: " in done.stderr) == (done.returncode == 1), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["convert", "verify", "inspect"])
def test_a_full_output(command, place, tmp_path):
    with open("/dev/full", "w") as full:
        done = run(command, place, tmp_path / "new", stdout=full)
    assert done.returncode == 1
    check_message(done)
    assert "cannot print the result to standard output" in done.stderr
    assert "print to a file or pipe that takes it" in done.stderr
    assert (tmp_path / "new" / "dataset.json").exists() == (command == "convert")


@pytest.mark.slow
def test_a_full_output_where_the_command_fails(place, tmp_path):
    with open("/dev/full", "w") as full:
        for words in (["inspect", "nowhere", "--json"], ["--help"], ["x", "--json"]):
            done = subprocess.run(
                [sys.executable, "-m", "gristmill", *words],
                cwd=place,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=120,
            )
            # The code says what happened first.
            assert done.returncode == {"inspect": 3, "--help": 1, "x": 2}[words[0]]
            assert "rror: " in done.stderr
            assert "Traceback" not in done.stderr
            assert "Exception ignored" not in done.stderr
        for words, code in ((["inspect", "nowhere"], 3), (["x"], 2)):
            command = [sys.executable, "-m", "gristmill", *words]
            done = subprocess.run(command, cwd=place, stderr=full, timeout=120)
            assert done.returncode == code


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code"), [("head", 0), ("verify", 1)])
def test_a_reader_that_stops(command, code, place, tmp_path):
    """As in `gristmill head | head -1`: it has seen what it wanted."""
    arguments = [word.format(new=tmp_path / "new") for word in COMMANDS[command]]
    process = subprocess.Popen(
        [sys.executable, "-m", "gristmill", *arguments],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == code
    assert ("cannot print the result" in said) == (code == 1)
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["convert", "inspect", "trace"])
def test_few_open_files(command, place, tmp_path):
    done = run(
        *(command, place, tmp_path / "new", "--json"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)),
    )
    check_message(done)
    if done.returncode:
        assert "ulimit -n 65536" in done.stderr
        assert "ulimit -n" in json.loads(done.stdout)["error"]["cure"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_little_address_space(command, place, tmp_path):
    limits = (180_000 << 10, 180_000 << 10)
    done = run(
        *(command, place, tmp_path / "new"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limits),
    )
    check_message(done)
    if done.returncode:
        assert "ulimit -v" in done.stderr or "fewer workers" in done.stderr
