"""What scripts read where a command fails: one JSON object and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gristmill.pipelines.commands.command import errors_reported
from gristmill.pipelines.commands.main import cli
from tests.commands.conftest import run
from tests.support.records import text_records, write_tfrecords

FIELDS = {"type", "what", "where", "expected", "got", "cure"}


@pytest.mark.parametrize("runner", [(), ("--runner", "FnApiRunner")])
def test_damaged_input(tmp_path, runner):
    write_tfrecords(tmp_path / "in", text_records(20))
    data = bytearray((tmp_path / "in").read_bytes())
    data[20] ^= 1
    (tmp_path / "in").write_bytes(data)
    line = ["convert", f"{tmp_path}/in", f"{tmp_path}/out", "--json", *runner]
    # Options of the runner are sorted out before the command is called.
    done = CliRunner().invoke(cli, line, obj=[])
    assert done.exit_code == 3
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "CorruptFrameError"
    assert error["where"] == f"{tmp_path}/in, byte offset 0"
    assert error["what"] in done.stderr
    assert "while running" not in error["what"]
    assert all(error[name] for name in ("expected", "got"))
    assert "--on-corrupt" in error["cure"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convert", "only-one"), "Missing argument"),
        (("convert", "a", "b", "--num-shrads=3"), "No such option"),
        (("nonsense",), "No such command"),
    ],
)
def test_wrong_usage(arguments, message):
    done = run(*arguments, "--json", code=2)
    (error,) = json.loads(done.stdout).values()
    assert error.keys() == FIELDS
    assert message in error["what"]
    assert error["where"] is None
    assert message in done.stderr
    assert run(*arguments, code=2).stdout == ""


def test_errors_that_are_not_ours_are_not_hidden():
    with pytest.raises(ZeroDivisionError), errors_reported(as_json=True):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (("convert", "x", "y", "--runner", "DirectRunner"), "apache_beam", "beam"),
        (("bench-loader", "x"), "grain", "loader"),
    ],
)
def test_the_extra_that_a_command_needs_is_named(arguments, package, extra):
    script = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"  # As if it were not installed.
        "from gristmill.pipelines.commands.main import main\n"
        f"main([*{arguments!r}, '--json'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["what"] == f"the package {package} is not installed"
    assert error["cure"] == f"pip install 'gristmill[{extra}]'"
    assert done.stderr.startswith("error: ")
