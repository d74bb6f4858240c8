"""The command line as a whole: which commands there are, and how they fail."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from gristmill.loader import BlockShuffle
from gristmill.pipelines.commands.main import cli, find_command, main
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
        (["inspect", "d", "--records-per-shard", "9"], 2, "give --num-shards"),
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


def test_every_option_that_is_needed_is_tried():
    needed = {
        (name, option.opts[0]) for name, option in options_of_all() if option.required
    }
    tried = test_an_option_that_is_needed_and_not_given.pytestmark[0].args[1]
    assert {(name, flag) for name, flag, _ in tried} == needed


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
    text = succeeded("convert", "--help", cwd=tmp_path)
    assert "Exit codes" in text


def options_of_all() -> Iterator[tuple[str, click.Option]]:
    for name in cli.list_commands(click.Context(cli)):
        command = find_command(name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                yield name, option


def test_summaries_are_whole_and_commands_in_sections():
    done = CliRunner().invoke(cli, ["--help"], terminal_width=80)
    lines = done.stdout.partition("\nGet started:\n")[2].splitlines()
    shown = {}
    for line in lines:
        assert len(line) <= 80
        if found := re.fullmatch(r"  (\S+) +(\S.*)", line):
            shown[found[1]] = found[2]
    names = cli.list_commands(click.Context(cli))
    assert shown.keys() >= {*names}
    for name in names:
        assert shown[name].endswith("."), (name, shown[name])
        assert "..." not in shown[name], (name, shown[name])
    sections = [line for line in lines if re.fullmatch(r"[A-Z].*:", line)]
    assert sections == ["Prepare data:", "Check and look:", "Train:"]


# What a value is, in all commands: one word for one meaning.
METAVARS = {
    "N": "a number",
    "SIZE": "bytes, with a unit",
    "MS": "milliseconds",
    "SECONDS": "seconds",
    "FILE": "a file",
    "DIR": "a directory",
    "FILE,PLACE": "the columns that have them",
    "VALUE": "a value, as JSON",
    "DATE": "a date",
    "PARTS": "parts of messages",
    "ROLES": "roles of messages",
    "NAME": "a name of a dataset, split or column",
    "NAME,...": "several",
    "NAME=SHARE,...": "weights",
    "N|NAME=N,...": "a number, or one for each dataset",
    "MODULE:FUNCTION": "a function",
    "FILE@PLACE": "a place of a file",
    "KIND": "of a record",
    "CODEC": "of chunks",
    "CONDITION": "on columns",
    "TOKEN": "a token",
    "RUNNER": "of Beam",
}
# These ask for something: without them there is no value.
ASKS = {("trace", name) for name in ("step", "row", "record", "document", "of")}


def test_every_option_says_what_its_value_is_and_its_default():
    seen = set()
    for name, option in options_of_all():
        where = (name, option.opts)
        assert option.help, where
        assert option.help[0].isupper(), where
        assert option.help.endswith((".", "/", ")")), where
        assert "[default" not in option.help, where
        if option.is_flag or option.name == "log_file":
            continue
        if not isinstance(option.type, click.Choice):
            assert option.metavar in METAVARS, where
            seen.add(option.metavar)
            number = isinstance(option.type, click.types.IntParamType)
            assert (option.metavar == "N") == number, where
        told = option.show_default
        if told is True and option.default is None:
            told = None
        assert told or option.required or (name, option.name) in ASKS, where
    assert seen == {*METAVARS}


def test_defaults_that_are_told_are_those_of_the_loader():
    command = find_command("trace")
    told = {
        option.name: option.show_default
        for option in command.params
        if isinstance(option, click.Option)
    }
    blocks = BlockShuffle()
    assert told["block_records"] == str(blocks.block_records)
    assert told["window_blocks"] == str(blocks.window_blocks)


def test_help_of_every_command_fits_80_columns():
    for name in cli.list_commands(click.Context(cli)):
        done = CliRunner().invoke(cli, [name, "--help"], terminal_width=80)
        # A list of choices is one word.
        wide = [line for line in done.stdout.splitlines() if len(line) > 80]
        assert [line for line in wide if "|" not in line] == [], name
