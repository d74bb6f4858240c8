"""Options of all commands, of the environment, and their completion by a shell."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import click
import pytest

from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.commands.main import COMMANDS, find_command, main
from tests.commands.conftest import run
from tests.support.datasets import convert
from tests.support.records import frames_of, text_records


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("dataset")
    return convert(folder, [[b"a", b"b"], [b"c", b"d"]])


def test_variables_of_options_that_are_generated(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").write_bytes(frames_of(text_records(20)))
    environment = {
        "GRISTMILL_CONVERT_NUM_SHARDS": "3",
        "GRISTMILL_CONVERT_MATCH_SHARDS": "false",
        "GRISTMILL_CONVERT_GROUP_SIZE": "4",
        "GRISTMILL_CONVERT_WORKERS": "1",
        "GRISTMILL_APPEND_NUM_SHARDS": "9",
    }
    arguments = ("convert", tmp_path / "in", tmp_path / "out", "--group-size", "5")
    run(*arguments, **environment)
    split = open_manifest(tmp_path / "out").splits["train"]
    assert split.shards == 3
    assert split.writer_options.startswith("group_size:5,")  # The command line wins.


def test_an_error_of_a_variable_names_it(dataset: str) -> None:
    wrong = {"GRISTMILL_HEAD_LIMIT": "many"}
    done = run("head", dataset, code=2, GRISTMILL_JSON="1", **wrong)
    assert "'many' is not a valid integer" in done.stderr
    assert done.stderr.endswith("The value is from GRISTMILL_HEAD_LIMIT.\n")
    assert "GRISTMILL_HEAD_LIMIT" in json.loads(done.stdout)["error"]["what"]
    done = run("head", dataset, "-n", "many", code=2)
    assert "from" not in done.stderr


def test_a_variable_of_no_option_is_named(dataset: str) -> None:
    done = run("head", dataset, GRISTMILL_HEAD_NUMBER="1", GRISTMILL_TRACE_SEED="1")
    (warning, *_) = done.stderr.splitlines()
    expected = "GRISTMILL_HEAD_NUMBER is not an option of gristmill head"
    assert warning == f"warning: {expected}"
    assert "TRACE" not in done.stderr


def test_a_runner_of_the_environment(monkeypatch, capsys) -> None:
    monkeypatch.setenv("GRISTMILL_VERIFY_RUNNER", "Nope")
    with pytest.raises(SystemExit):
        main(["verify", "nowhere"])
    assert "unknown Beam runner" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        # Options of Beam can be mixed with ours, as behind --runner.
        main(["verify", "nowhere", "--streaming", "--runner=FnApiRunner"])
    assert "not a committed dataset" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_variable_and_a_place_in_a_short_help(name: str) -> None:
    command = find_command(name)
    text = run(name, "--help", COLUMNS="80").stdout
    assert len(text.splitlines()) <= 60
    words = re.sub(r"-\n +", "-", text)  # A name may be broken where a line ends.
    options = [one for one in command.params if isinstance(one, click.Option)]
    common = {"--quiet", "--verbose", "--log-file", "--json"}
    for option in options:
        flag = max(option.opts, key=len)
        assert flag in words
        variable = flag.lstrip("-").replace("-", "_").upper()
        assert option.envvar == (f"GRISTMILL_{variable}" if flag in common else None)
        if flag not in common:  # Click makes the variable of the name.
            assert str(option.name).upper() == variable
    assert len({option.name for option in options}) == len(options)
    assert common - {flag for one in options for flag in one.opts} <= {"--json"}


def test_bash_completes(tmp_path: pathlib.Path) -> None:
    script = """
eval "$(_GRISTMILL_COMPLETE=bash_source gristmill)"
COMP_WORDS=(gristmill ins) COMP_CWORD=1
_gristmill_completion gristmill
echo "${COMPREPLY[@]}"
"""
    commands = pathlib.Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "inspect\n", done.stderr
