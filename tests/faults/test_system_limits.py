"""The command line where the system refuses: no room, few files, little memory."""

import json
import resource
import subprocess
import sys

import pytest

from tests.support.datasets import convert
from tests.support.records import text_records, write_tfrecords

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with `in` (TFRecords) and `out` (a dataset of 12 shards)."""
    place = tmp_path_factory.mktemp("limits")
    write_tfrecords(place / "in", text_records(100))
    convert(place, [text_records(20, seed=n) for n in range(12)])
    return place


COMMANDS = {
    "convert": "convert in {new} --num-shards=2 --workers=2",
    "alone": "convert in {new} --workers=1",
    "verify": "verify out --workers=2",
    "index": "index out/*array_record* --overwrite",
    "inspect": "inspect out",
    "head": "head out",
    "trace": "trace out --batch-size=3 --step=1 --row=1 --show",
    "bench": "bench-loader out --seconds=0.1 --batch-size=20",
}


def run(words, place, new, **options):
    words = COMMANDS.get(words, words).format(new=new).split()
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    argv = [sys.executable, "-m", "gristmill", *words]
    return subprocess.run(argv, cwd=place, text=True, timeout=120, **options)


def limited(kind, most):
    """Returns an option that limits what a process may take."""
    return {"preexec_fn": lambda: resource.setrlimit(kind, (most, most))}


def check_message(done):
    """Checks that a command has succeeded, or said what to do."""
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert ("\n  to do: " in done.stderr) == (done.returncode == 1), done.stderr


@pytest.mark.parametrize("command", ["convert", "verify", "inspect"])
def test_a_full_output(command, place, tmp_path):
    with open("/dev/full", "w") as full:
        done = run(command, place, tmp_path / "new", stdout=full)
    assert done.returncode == 1
    check_message(done)
    assert "cannot print the result to standard output" in done.stderr
    assert "print to a file or pipe that takes it" in done.stderr
    assert (tmp_path / "new" / "dataset.json").exists() == (command == "convert")


@pytest.mark.parametrize(
    ("words", "code"), [("inspect nowhere --json", 3), ("--help", 1), ("x --json", 2)]
)
def test_a_full_output_where_the_command_fails(place, tmp_path, words, code):
    """The code says what happened first."""
    with open("/dev/full", "w") as full:
        done = run(words, place, tmp_path, stdout=full)
        assert done.returncode == code
        assert "rror: " in done.stderr
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        if code > 1:
            assert run(words, place, tmp_path, stderr=full).returncode == code


@pytest.mark.parametrize(("command", "code"), [("head", 0), ("verify", 1)])
def test_a_reader_that_stops(command, code, place):
    """As in `gristmill head | head -1`: it has seen what it wanted."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gristmill", *COMMANDS[command].split()],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    with process.stderr:
        said = process.stderr.read()
    assert process.wait(timeout=120) == code
    assert ("cannot print the result" in said) == (code == 1)
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["convert", "inspect", "trace"])
def test_few_open_files(command, place, tmp_path):
    words, limit = COMMANDS[command] + " --json", limited(resource.RLIMIT_NOFILE, 12)
    done = run(words, place, tmp_path / "new", **limit)
    check_message(done)
    if done.returncode:
        assert "ulimit -n 65536" in done.stderr
        assert "ulimit -n" in json.loads(done.stdout)["error"]["cure"]


@pytest.mark.parametrize("command", COMMANDS)
def test_little_address_space(command, place, tmp_path):
    limit = limited(resource.RLIMIT_AS, 180_000 << 10)
    done = run(command, place, tmp_path / "new", **limit)
    check_message(done)
    if done.returncode:
        assert "ulimit -v" in done.stderr or "fewer workers" in done.stderr
