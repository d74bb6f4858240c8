"""What commands say on standard error, and in a file of logs."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import logging
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from gristmill.pipelines.commands.messages import coloured
from tests.commands.conftest import refused, run
from tests.support.records import frames_of, text_records

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    """A file of 90 records, in a folder that a shell would take for two words."""
    folder = tmp_path_factory.mktemp("two words")
    (folder / "in.tfrecord").write_bytes(frames_of(text_records(90)))
    return folder


@pytest.fixture(scope="module")
def dataset(source: pathlib.Path) -> str:
    output = str(source / "out")
    run("convert", source / "in.tfrecord", output, "--num-shards", 3, "--workers", 1)
    return output


def test_quiet_and_verbose(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    arguments = ("convert", source / "in.tfrecord", tmp_path, "--workers", 1)
    done = run(*arguments, "-q")
    assert "90 records in 1 shard, committed" in done.stdout
    assert done.stderr == ""
    done = run("verify", tmp_path, "-v", "--workers", 1)
    name = f"{tmp_path.name}-train.array_record-00000-of-00001"
    assert f"{name}: 90 records compared\n" in done.stderr
    assert "compared" not in run("verify", tmp_path, "--workers", 1).stderr
    assert "exclude each other" in refused("verify", tmp_path, "-q", "-v")


def test_errors_are_said_also_if_quiet_and_more_of_them_if_verbose() -> None:
    """And not again by handlers that libraries, such as Beam, set up."""
    message = "error: not a committed dataset\n"
    assert refused("inspect", "nowhere", "-q", code=3).startswith(message)
    root, theirs = logging.getLogger(), io.StringIO()
    handler = logging.StreamHandler(theirs)
    root.addHandler(handler)
    try:
        said = refused("inspect", "nowhere", "-v", code=3)
    finally:
        root.removeHandler(handler)
    assert theirs.getvalue() == ""
    assert said.count("Traceback") == 1
    assert f"\n{message}" in said
    assert "Traceback" not in refused("inspect", "nowhere", code=3)


def test_a_file_of_logs(dataset: str, tmp_path: pathlib.Path) -> None:
    loggers = [logging.getLogger(name) for name in ("", "gristmill")]
    before = [(one.propagate, [*one.handlers]) for one in loggers]
    log = tmp_path / "log"
    assert run("verify", dataset, "--log-file", log, "-q", "--workers", 1).stderr == ""
    run("inspect", "nowhere", "--log-file", log, code=3)
    lines = log.read_text().splitlines()
    begin = r"gristmill \S+, Python \S+: "
    for line, level, said in (
        (0, "INFO", begin + re.escape(f"gristmill verify '{dataset}' --workers 1")),
        (1, "INFO", r".*: 3 shards to verify"),
        (2, "INFO", r".*: \d+ records compared"),
        (5, "INFO", r".*: verified 3 shards, 90 records, 0 findings"),
        (6, "INFO", r"done in [\d.]+ s"),
        (7, "INFO", begin + "gristmill inspect nowhere"),
        (8, "ERROR", "NotADatasetError: not a committed dataset"),
    ):
        assert re.fullmatch(rf"{TIME} {level} gristmill\S*: {said}", lines[line])
    assert "Traceback (most recent call last):" in lines[9:]
    assert [(one.propagate, [*one.handlers]) for one in loggers] == before
    said = refused("inspect", dataset, "--log-file", tmp_path / "no" / "log")
    assert f"{tmp_path}/no/log: No such file or directory" in said


def test_a_note_is_in_the_file_of_logs(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    test = tmp_path / "d-test.tfrecord"
    test.write_bytes((source / "in.tfrecord").read_bytes())
    options = ("--log-file", tmp_path / "log", "--workers", 1)
    done = run("convert", test, tmp_path / "out", *options)
    note = "note: the input files are of split test"
    assert done.stderr.count(note) == (tmp_path / "log").read_text().count(note) == 1


def test_what_was_left_out_is_to_be_looked_at(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    data = bytearray((source / "in.tfrecord").read_bytes())
    data[20] ^= 1
    (tmp_path / "in").write_bytes(data)
    output = tmp_path / "two words" / "out"
    options = ("--on-corrupt", "skip", "--workers", 1)
    for _ in range(2):  # The second time, nothing is left to do.
        done = run("convert", tmp_path / "in", output, *options)
        line = done.stderr.splitlines()[-1]
        assert line.startswith("next (what was left out): cat ")
        command = ["sh", "-c", line.partition(": ")[2]]
        (region,) = subprocess.check_output(command, timeout=60).splitlines()
        assert json.loads(region)["file"] == f"{tmp_path}/in"


def test_inspect_leads_to_a_batch_of_training(dataset: str) -> None:
    said = run("inspect", dataset).stderr
    (line,) = re.findall(r"^next \(a batch.*?\): (.*)$", said, re.MULTILINE)
    *command, code = shlex.split(line)
    assert command == ["python", "-c"]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(code, {})
    assert len(ast.literal_eval(shown.getvalue())) == 4


def test_errors_and_warnings_have_a_colour_on_a_terminal(monkeypatch) -> None:
    assert coloured("error: a") == "error: a"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured("error: a") == "\x1b[31m\x1b[1merror:\x1b[0m a"
    assert coloured("warning: a").startswith("\x1b[33m")
    assert coloured("next: a") == "next: a"
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("error: a") == "error: a"
