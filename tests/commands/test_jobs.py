"""Commands that start jobs: their options, and what they print."""

from __future__ import annotations

import json
import pathlib

import pytest

from gristmill.pipelines.commands import main as cli
from tests.support.shell import FILES, RECORDS, succeeded, write_source

RUNNER = ("--runner", "FnApiRunner")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.mark.slow
def test_json_outcome(source, tmp_path):
    text = succeeded("convert", "*.tfrecord", tmp_path / "out", "--json", cwd=source)
    outcome = json.loads(text)
    assert outcome["manifest"]["records"] == FILES * RECORDS
    assert outcome["committed_before"] == []
    again = succeeded("convert", "*.tfrecord", tmp_path / "out", "--json", cwd=source)
    assert json.loads(again)["committed_before"] == ["train"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "x", "--wait"), "--runner DataflowRunner"),
        (("index", "x", "--cross-region", *RUNNER), "--runner DataflowRunner"),
        (("index", "x", "--install-on-workers"), "--runner DataflowRunner"),
        (("verify", "x", "--", "--region=x"), "add --runner"),
        (("index", "x", "--workers=2", *RUNNER), "--workers"),
        (
            ("unique", "a", "--runner=DataflowRunner"),
            "cannot be found on Dataflow",
        ),
        (("attach", "a", "--map=m:f", "--runner=DataflowRunner"), "one machine"),
        (("attach", "a", "b", "--number=n", *RUNNER), "only --map runs on Beam"),
        (("convert", "a", "b", "--num-shrads=3", *RUNNER), "No such option"),
        (("convert", "a", "b", "--region=x"), "No such option"),
    ],
)
def test_options_without_effect_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
