"""The command line as a whole: which commands there are, and how they fail."""

from __future__ import annotations

import pytest

from tests.support.shell import gristmill, succeeded


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["convert", "none-*.tfrecord", "out"], 2, "no input file matches"),
        (["convert", "only-one"], 2, "Missing argument"),
        (["convert", "x", "y", "--compression", "lzma"], 2, "unknown compression"),
        (["convert", "x", "y", "--group-size", "0"], 2, "group size"),
        (["convert", "x", "y", "--shard-size", "much"], 2, "not a size"),
        (["convert", "x", "y", "--split", "a/b"], 2, "split name"),
        (["convert", "x", "y", "--", "--region=x"], 2, "--runner"),
        (["convert", "x", "y", "--runner", "R", "--workers", "2"], 2, "--workers"),
        (["convert", "x", "y", "--map", "nocolon"], 2, "not the name"),
        (["head", "nowhere"], 3, "not a committed dataset"),
        (["inspect", "nowhere"], 3, "not a committed dataset"),
        (["verify", "nowhere"], 3, "not a committed dataset"),
        (["index", "nowhere*"], 2, "no input file matches"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_exit_codes_and_messages(tmp_path, arguments, code, message):
    done = gristmill(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help(tmp_path):
    assert succeeded("--version", cwd=tmp_path).startswith("gristmill ")
    text = succeeded("convert", "--help", cwd=tmp_path)
    assert "Exit codes" in text
