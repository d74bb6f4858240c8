"""What all commands share: options, variables, messages, exit codes, a file of logs."""

import ast
import contextlib
import io
import json
import logging
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import click
import pytest

from gristmill.dataset import RecordsDigest, open_manifest
from gristmill.dataset.base.columns import Done
from gristmill.pipelines.commands.command import errors_reported
from gristmill.pipelines.commands.main import COMMANDS, find_command, main
from gristmill.pipelines.commands.messages import coloured
from gristmill.pipelines.local.progress import Counter, shown
from tests.commands.conftest import refused, run
from tests.support.records import flip, frames_of, text_records
from tests.support.shell import on_terminal, sent_to_terminal, succeeded
from tests.support.waiting import until


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file of 90 records, in a folder that a shell would take for two words."""
    path = tmp_path_factory.mktemp("two words") / "in.tfrecord"
    path.write_bytes(frames_of(text_records(90)))
    return path


@pytest.fixture(scope="module")
def dataset(source):
    output = str(source.with_name("out"))
    run(f"convert '{source}' '{output}' --num-shards 3 --workers 1")
    return output


@pytest.fixture
def damaged(source, tmp_path):
    path = pathlib.Path(shutil.copy(source, tmp_path / "in"))
    flip(path, 20)
    return path


# --- Options, and variables of the environment.


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_variable_and_a_place_in_a_short_help(name):
    text = run(f"{name} --help", COLUMNS="80").stdout
    assert len(text.splitlines()) <= 60
    words = re.sub(r"-\n +", "-", text)  # A name may be broken where a line ends.
    parameters = find_command(name).params
    options = [one for one in parameters if isinstance(one, click.Option)]
    common = {"--quiet", "--verbose", "--log-file", "--json"}
    for option in options:
        flag = max(option.opts, key=len)
        assert flag in words
        assert option.help
        variable = flag.lstrip("-").replace("-", "_").upper()
        assert option.envvar == (f"GRISTMILL_{variable}" if flag in common else None)
        if flag not in common:  # Click makes the variable of the name.
            assert str(option.name).upper() == variable
    assert len({option.name for option in options}) == len(options)
    assert common - {flag for one in options for flag in one.opts} <= {"--json"}


def test_a_variable_is_an_option_that_the_command_line_overrides(source, tmp_path):
    environment = {
        "GRISTMILL_CONVERT_NUM_SHARDS": "3",
        "GRISTMILL_CONVERT_MATCH_SHARDS": "false",
        "GRISTMILL_CONVERT_GROUP_SIZE": "4",
        "GRISTMILL_CONVERT_WORKERS": "1",
        "GRISTMILL_APPEND_NUM_SHARDS": "9",
    }
    run(f"convert '{source}' {tmp_path} --group-size 5", **environment)
    split = open_manifest(tmp_path).splits["train"]
    assert split.shards == 3
    assert split.writer_options.startswith("group_size:5,")


def test_a_variable_that_is_wrong_or_unknown_is_named(dataset):
    line = f"head '{dataset}'"
    wrong = {"GRISTMILL_JSON": "1", "GRISTMILL_HEAD_LIMIT": "many"}
    done = run(line, code=2, **wrong)
    assert "'many' is not a valid integer" in done.stderr
    assert done.stderr.endswith("The value is from GRISTMILL_HEAD_LIMIT.\n")
    assert "GRISTMILL_HEAD_LIMIT" in json.loads(done.stdout)["error"]["what"]
    assert "from" not in refused(f"{line} -n many")
    done = run(line, GRISTMILL_HEAD_NUMBER="1", GRISTMILL_TRACE_SEED="1")
    warning = "GRISTMILL_HEAD_NUMBER is not an option of gristmill head"
    assert done.stderr.splitlines()[0] == f"warning: {warning}"
    assert "TRACE" not in done.stderr


def test_a_runner_of_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("GRISTMILL_VERIFY_RUNNER", "Nope")
    # Options of Beam can be mixed with ours, as behind --runner.
    streaming = ["--streaming", "--runner=FnApiRunner"]
    for more, said in (
        ([], "unknown Beam runner"),
        (streaming, "not a committed dataset"),
    ):
        with pytest.raises(SystemExit):
            main(["verify", "nowhere", *more])
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_bash_completes_and_the_first_commands_work(tmp_path):
    script = """
eval "$(_GRISTMILL_COMPLETE=bash_source gristmill)"
COMP_WORDS=(gristmill ins) COMP_CWORD=1
_gristmill_completion gristmill
echo "${COMPREPLY[@]}"
gristmill --version
gristmill --help
gristmill demo demo
gristmill demo demo
"""
    commands = pathlib.Path(sys.executable).parent
    said = subprocess.check_output(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"},
        cwd=tmp_path,
        text=True,
        timeout=120,
    )
    assert said.startswith("inspect\ngristmill ")
    for text in ("Exit codes", "4,000 records in 8 shards", "committed already"):
        assert text in said


# --- Errors: an exit code, a message, and one JSON object.


@pytest.mark.parametrize("runner", ["", "--runner FnApiRunner"])
def test_damaged_input(damaged, tmp_path, runner):
    done = run(f"convert {damaged} {tmp_path}/out --json {runner}", code=3)
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "CorruptFrameError"
    assert error["where"] == f"{damaged}, byte offset 0"
    assert error["what"] in done.stderr
    assert "while running" not in error["what"]
    assert all(error[name] for name in ("expected", "got"))
    assert "--on-corrupt" in error["cure"]


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["", "--runner FnApiRunner"])
def test_a_damaged_shard_is_reported(source, tmp_path, runner):
    run(f"convert '{source}' {tmp_path} --workers 1")
    (shard,) = tmp_path.glob("*array_record-*")
    flip(shard, 5000)
    report = tmp_path / "report.json"
    done = run(f"verify {tmp_path} --report {report} {runner}", code=3)
    assert "DAMAGED" in done.stdout
    assert done.output.count(shard.name) == 1
    found = json.loads(report.read_bytes())["findings"]
    assert {finding["path"] for finding in found} == {shard.name}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("convert only-one", "Missing argument"),
        ("convert a b --num-shrads=3", "No such option"),
        ("nonsense", "No such command"),
    ],
)
def test_wrong_usage(line, message):
    done = run(f"{line} --json", code=2)
    (error,) = json.loads(done.stdout).values()
    assert error.keys() == {"type", "what", "where", "expected", "got", "cure"}
    assert message in error["what"]
    assert error["where"] is None
    assert message in done.stderr
    assert run(line, code=2).stdout == ""


def test_errors_that_are_not_ours_are_not_hidden():
    with pytest.raises(ZeroDivisionError), errors_reported(as_json=True):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        ("convert x y --runner DirectRunner", "apache_beam", "beam"),
        ("bench-loader x", "grain", "loader"),
    ],
)
def test_the_extra_that_a_command_needs_is_named(line, package, extra):
    script = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"  # As if it were not installed.
        "from gristmill.pipelines.commands.main import main\n"
        f"main([*{line.split()!r}, '--json'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["what"] == f"the package {package} is not installed"
    assert error["cure"] == f"pip install '.[{extra}]', in the clone of gristmill"
    assert done.stderr.startswith("error: ")


# --- What is said on standard error, and in a file of logs.


def test_quiet_and_verbose(source, tmp_path):
    done = run(f"convert '{source}' {tmp_path} --workers 1 -q")
    assert "90 records in 1 shard, committed" in done.stdout
    assert done.stderr == ""
    verify = f"verify {tmp_path} --workers 1"
    compared = f"{tmp_path.name}-train.array_record-00000-of-00001: 90 records compared"
    assert compared in run(f"{verify} -v").stderr
    assert "compared" not in run(verify).stderr
    assert "exclude each other" in refused(f"{verify} -q -v")


def test_errors_are_said_also_if_quiet_and_more_of_them_if_verbose():
    """And not again by handlers that libraries, such as Beam, set up."""
    message = "error: not a committed dataset\n"
    assert refused("inspect nowhere -q", code=3).startswith(message)
    root, theirs = logging.getLogger(), io.StringIO()
    handler = logging.StreamHandler(theirs)
    root.addHandler(handler)
    try:
        said = refused("inspect nowhere -v", code=3)
    finally:
        root.removeHandler(handler)
    assert theirs.getvalue() == ""
    assert said.count("Traceback") == 1
    assert f"\n{message}" in said
    assert "Traceback" not in refused("inspect nowhere", code=3)


LOG = r"""
 INFO gristmill\S*: gristmill \S+, Python \S+: gristmill verify '{dataset}' --workers 1
 INFO gristmill\S*: .*: 3 shards to verify
 INFO gristmill\S*: .*: \d+ records compared
 INFO gristmill\S*: .*: \d+ records compared
 INFO gristmill\S*: .*: \d+ records compared
 INFO gristmill\S*: .*: verified 3 shards, 90 records, 0 findings
 INFO gristmill\S*: done in [\d.]+ s
 INFO gristmill\S*: gristmill \S+, Python \S+: gristmill inspect nowhere
 ERROR gristmill\S*: NotADatasetError: not a committed dataset
"""


def test_a_file_of_logs(source, dataset, tmp_path):
    loggers = [logging.getLogger(name) for name in ("", "gristmill")]
    before = [(one.propagate, [*one.handlers]) for one in loggers]
    log = tmp_path / "log"
    line = f"verify '{dataset}' --log-file {log} -q --workers 1"
    assert run(line).stderr == ""
    run(f"inspect nowhere --log-file {log}", code=3)
    lines = log.read_text().splitlines()
    expected = LOG.replace("{dataset}", re.escape(dataset)).splitlines()[1:]
    for line, pattern in zip(lines, expected, strict=False):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z" + pattern, line)
    assert "Traceback (most recent call last):" in lines[len(expected) :]
    assert [(one.propagate, [*one.handlers]) for one in loggers] == before
    said = refused(f"inspect nowhere --log-file {tmp_path}/no/log")
    assert f"{tmp_path}/no/log: No such file or directory" in said
    # Notes are in it, too.
    test = tmp_path / "d-test.tfrecord"
    test.write_bytes(source.read_bytes())
    said = run(f"convert {test} {tmp_path}/out --log-file {log} --workers 1").stderr
    note = "note: the input files are of split test"
    assert said.count(note) == log.read_text().count(note) == 1


def test_what_was_left_out_is_to_be_looked_at(damaged, tmp_path):
    for _ in range(2):  # The second time, nothing is left to do.
        output = f"'{tmp_path}/two words/out'"
        done = run(f"convert {damaged} {output} --on-corrupt skip --workers 1")
        line = done.stderr.splitlines()[-1]
        assert line.startswith("next (what was left out): cat ")
        command = ["sh", "-c", line.partition(": ")[2]]
        (region,) = subprocess.check_output(command, timeout=60).splitlines()
        assert json.loads(region)["file"] == str(damaged)


def test_inspect_leads_to_a_batch_of_training(dataset):
    said = run(f"inspect '{dataset}'").stderr
    (line,) = re.findall(r"^next \(a batch.*?\): (.*)$", said, re.MULTILINE)
    *command, code = shlex.split(line)
    assert command == ["python", "-c"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert len(ast.literal_eval(printed.getvalue())) == 4


def test_errors_and_warnings_have_a_colour_on_a_terminal(monkeypatch):
    assert coloured("error: a") == "error: a"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured("error: a") == "\x1b[31m\x1b[1merror:\x1b[0m a"
    assert coloured("warning: a").startswith("\x1b[33m")
    assert coloured("next: a") == "next: a"
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("error: a") == "error: a"


# --- Progress.


def test_progress_in_lines_without_a_terminal(capfd):
    said = [""]

    def is_there(pattern):
        said[0] += capfd.readouterr().err
        return re.search(pattern, said[0], re.MULTILINE) is not None

    counter = Counter("shards", 2, 400)
    with shown("verifying", counter, line_seconds=0.01):
        read = RecordsDigest(records=12_000, raw_bytes=2_000_000)
        counter.add(Done("", "", 300, read))
        speed = r"[\d,.]+ MB/s  0:00:\d\d elapsed$"
        shards = rf"^verifying  75%  1/2 shards  12,000 records  {speed}"
        until(lambda: is_there(shards))
    # Nobody knows how long this takes.
    with shown("preparing", line_seconds=0.01):
        until(lambda: is_there(r"^preparing  0:00:\d\d elapsed$"))


@pytest.mark.slow
def test_every_long_command_shows_its_progress(source, tmp_path):
    def seen(line, **options):
        return on_terminal(*shlex.split(line), cwd=tmp_path, **options)

    for command, name, files in (
        (f"convert '{source}' texts --num-shards 3", "converting", "shards"),
        ("verify texts", "verifying", "shards"),
        ("index texts/*array_record* --overwrite", "indexing", "files"),
    ):
        pattern = rf"{name} \S+ 100%  3/3 {files}  90 records .* elapsed, \S+ left"
        assert re.search(pattern, seen(command))
    assert re.search(r"appending .* left", seen(f"append texts '{source}'"))
    # On a narrow terminal the times are still there.
    short = r"verifying \S+ 100%  \d/\d shards  [\d.]+ MB/s  \d:\d\d:\d\d elapsed, \S+"
    assert re.search(f"{short} left", seen("verify texts", columns=80))


@pytest.mark.slow
def test_a_terminal_alone_gets_colours_and_progress(dataset, tmp_path):
    def sent(*options, **environment):
        given = ("verify", dataset, *options)
        return sent_to_terminal(*given, cwd=tmp_path, **environment)

    colour = re.compile(r"\x1b\[[\d;]*3[0-9;]+m")
    assert colour.search(sent())
    text = sent(NO_COLOR="1")
    assert "verifying" in text
    assert not colour.search(text)
    assert sent("-q") == ""
    assert "\x1b" not in succeeded("verify", dataset, cwd=tmp_path)
