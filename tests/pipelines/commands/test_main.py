"""The command line as a whole: which commands there are, and how they fail."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gristmill.pipelines.commands.main import cli, main
from tests.support.shell import succeeded


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["convert", "none-*.tfrecord", "out"], 2, "no input file matches"),
        (["convert", "only-one"], 2, "Missing argument 'OUTPUT'"),
        (["convert"], 2, "Missing argument 'INPUT...'"),
        (["append", "d"], 2, "Missing argument 'INPUT...'"),
        (["convert", "x", "y", "--compression", "lzma"], 2, "unknown compression"),
        (["convert", "x", "y", "--group-size", "0"], 2, "group size"),
        (["convert", "x", "y", "--shard-size", "much"], 2, "not a size"),
        (["convert", "x", "y", "--split", "a/b"], 2, "split name"),
        (["convert", "x", "y", "--", "--region=x"], 2, "--runner"),
        (["convert", "x", "y", "--runner", "FnApi", "--workers", "2"], 2, "--workers"),
        (["convert", "x", "y", "--map", "nocolon"], 2, "not the name"),
        (["head", "nowhere"], 2, "no input file matches"),
        (["inspect", "nowhere"], 3, "not a committed dataset"),
        (["verify", "nowhere"], 3, "not a committed dataset"),
        (["index", "nowhere*"], 2, "no ArrayRecord file matches"),
        (["nonsense"], 2, "No such command"),
        (["convrt", "a", "b"], 2, "Did you mean 'convert'?"),
        (["diff", "a", "b"], 2, "inspect DATASET --edition N"),
        (["blame", "d"], 2, "gristmill trace"),
        (["inspect", "d", "--records-per-shard", "9"], 2, "Give --num-shards"),
    ],
)
def test_exit_codes_and_messages(
    tmp_path, monkeypatch, capsys, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == code, said
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "flag", "given"),
    [
        ("audit", "--template", ["--tokenizer", "t"]),
        ("audit", "--tokenizer", ["--template", "t"]),
    ],
)
def test_an_option_that_is_needed_and_not_given(name, flag, given):
    done = CliRunner().invoke(cli, [name, "d", *given])
    assert done.exit_code == 2
    assert f"Missing option '{flag}'" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # Before anything is looked at: gs:// would ask for credentials.
        (["convert", "gs://x/y", "gs://z", "--runner", "Nope"], "FlinkRunner"),
        (["verify", "gs://z", "--runner=Nope"], "unknown Beam runner"),
        (["index", "x", "--runner", "FnApi", "--streaming=x"], "does not take these"),
    ],
)
def test_wrong_runners_and_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_version_and_help(tmp_path):
    assert succeeded("--version", cwd=tmp_path).startswith("gristmill ")
    assert "Exit codes" in succeeded("--help", cwd=tmp_path)
