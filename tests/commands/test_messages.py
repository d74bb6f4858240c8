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
from click.testing import CliRunner, Result

from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.commands.messages import coloured
from tests.support.records import frames_of, text_records

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


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
    done = run("verify", tmp_path, "-q", "-v", code=2)
    assert "--quiet and --verbose exclude each other" in done.stderr


def test_errors_are_said_also_if_quiet_and_more_of_them_if_verbose() -> None:
    message = "error: not a committed dataset\n"
    assert run("inspect", "nowhere", "-q", code=3).stderr.startswith(message)
    said = run("inspect", "nowhere", "-v", code=3).stderr
    assert said.count("Traceback") == 1
    assert f"\n{message}" in said
    assert "Traceback" not in run("inspect", "nowhere", code=3).stderr


def test_nothing_is_said_again_by_handlers_of_others() -> None:
    """Libraries, such as Beam, may set up logging for the process."""
    root, theirs = logging.getLogger(), io.StringIO()
    handler = logging.StreamHandler(theirs)
    root.addHandler(handler)
    try:
        run("inspect", "nowhere", "-v", code=3)
    finally:
        root.removeHandler(handler)
    assert theirs.getvalue() == ""
    assert logging.getLogger("gristmill").propagate


def test_a_file_of_logs(dataset: str, tmp_path: pathlib.Path) -> None:
    handlers = (
        [*logging.getLogger().handlers],
        [*logging.getLogger("gristmill").handlers],
    )
    log = tmp_path / "log"
    assert run("verify", dataset, "--log-file", log, "-q", "--workers", 1).stderr == ""
    run("inspect", "nowhere", "--log-file", log, code=3)
    lines = log.read_text().splitlines()
    begin = rf"{TIME} INFO gristmill\S*: gristmill \S+, Python \S+: "
    assert re.fullmatch(
        begin + re.escape(f"gristmill verify '{dataset}' --workers 1"), lines[0]
    )
    for line, said in (
        (1, r".*: 3 shards to verify"),
        (2, r".*: \d+ records compared"),
        (5, r".*: verified 3 shards, 90 records, 0 findings"),
        (6, r"done in [\d.]+ s"),
    ):
        assert re.fullmatch(rf"{TIME} INFO gristmill\S*: {said}", lines[line])
    assert re.fullmatch(begin + "gristmill inspect nowhere", lines[7])
    assert re.fullmatch(
        rf"{TIME} ERROR gristmill\S*: NotADatasetError: not a committed dataset",
        lines[8],
    )
    assert "Traceback (most recent call last):" in lines[9:]
    assert handlers == (
        [*logging.getLogger().handlers],
        [*logging.getLogger("gristmill").handlers],
    )
    done = run("inspect", dataset, "--log-file", tmp_path / "no" / "log", code=2)
    assert f"{tmp_path}/no/log: No such file or directory" in done.stderr


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
        shown = subprocess.run(
            ["sh", "-c", line.partition(": ")[2]],
            capture_output=True,
            check=True,
            timeout=60,
        )
        (region,) = map(json.loads, shown.stdout.splitlines())
        assert region["file"] == f"{tmp_path}/in"


def test_inspect_leads_to_a_batch_of_training(dataset: str) -> None:
    (line,) = [
        line.partition(": ")[2]
        for line in run("inspect", dataset).stderr.splitlines()
        if line.startswith("next (a batch")
    ]
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
