"""The user's function: what it may return, how its errors are told, what it leaves."""

import numpy as np
import pytest

from gristmill.dataset import (
    CorruptInputError,
    InputError,
    RecordsDigest,
    UserFunctionError,
)
from tests.conversion.format_files import put
from tests.support.conversion import convert, job_of, read_output
from tests.support.records import checksums, frames_of
from tests.support.shell import gristmill, records_of
from tests.support.told import told

MODULE = """\
import atexit, os, pathlib, sys, threading

SEEN = pathlib.Path({seen!r})
NUMBER = 3

def seen(record):
    with SEEN.open("ab") as file:
        file.write(record + b"\\n")
    return record

def mixed(record):
    number = int(record)
    return [None, record, [], [record], (record, b"x", b"")][number % 5]

def text(record): return record.decode()
def texts(record): return [record, "text"]
def generator(record): yield record

def fails(record):
    if record == b"7":
        raise ValueError("seven is not allowed")
    return record

def leaves(record):
    sys.exit(0)

def typo(record): return recrod
def killed(record): os.kill(os.getpid(), 9)

class Cleaner:
    @staticmethod
    def lower(record): return record.lower()

def forever(): threading.Event().wait()

def once(leave):
    done = []
    def same(record):
        if not done and record != b"0":
            done.append(1)
            leave()
        return record
    return same

thread = once(lambda: threading.Thread(target=forever, name="theirs").start())
hook = once(lambda: atexit.register(forever))
fork = once(os.fork)
exit = once(lambda: os._exit(0))
"""
LEAVES = (
    "import threading\n\nthreading.Thread(target=threading.Event().wait).start()\n\n"
)
RECORDS = [b"%d" % number for number in range(23)]
BEAM = "--runner DirectRunner"
BEAM_PROCESSES = (
    f"{BEAM} -- --direct_running_mode=multi_processing --direct_num_workers=2"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current directory, with inputs and modules of the user's."""
    name = f"mine_{tmp_path.name}"  # Processes keep what they have imported.
    seen = str(tmp_path / "seen")
    files = {
        f"{name}.py": MODULE.replace("{seen!r}", repr(seen)),
        "starts.py": f"{LEAVES}def same(record): return record\n",
        "broken.py": "def f(:\n",
        "raising.py": "raise RuntimeError('at import')\n",
        "in/a": frames_of(RECORDS),
    }
    put(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def made(place, function, **options):
    job = job_of(place / "in", place / "out", map=spec(place, function), **options)
    return convert(job).manifest.splits["train"]


def spec(place, function):
    return function if ":" in function else f"mine_{place.name}:{function}"


def tried_on(place):
    return (place / "seen").read_bytes().splitlines()


def digest(records):
    lengths = np.array([*map(len, records)])
    return RecordsDigest.of(checksums(records), lengths).hex


@pytest.mark.parametrize("shards", [4, 5])
def test_records_counts_and_digests(place, shards):
    split = made(place, "mixed", shards=shards)
    # Of five, two are dropped, two stay, and one becomes three.
    expected = []
    for number, record in enumerate(RECORDS):
        expected += [[], [record], [], [record], [record, b"x", b""]][number % 5]
    assert read_output(place / "out") == expected
    assert (split.dropped_records, split.added_records) == (10, 8)
    assert split.records == len(expected) == 23 - 10 + 8
    # What came in is on record as well.
    assert split.source["records"] == 23
    assert split.source["raw_bytes"] == sum(map(len, RECORDS))
    assert split.source["options"]["map"] == spec(place, "mixed")
    assert split.source["records_digest"] == digest(RECORDS)
    assert split.records_digest == digest(expected)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "has no attribute 'nothing'"),
        ("NUMBER", "not a function"),
        ("no_such_module_anywhere:f", "No module named"),
        ("broken:f", "SyntaxError"),
        ("raising:f", "RuntimeError: at import"),
    ],
)
def test_what_cannot_be_loaded(place, function, message):
    with told(InputError, message, "module:function"):
        made(place, function)
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("text", ["got:      str", "expected: bytes, None, or a list of bytes"]),
        ("texts", ["got:      list of ['bytes', 'str']"]),
        ("generator", ["got:      generator"]),
        ("leaves", ["failed: SystemExit: 0", ", in leaves: sys.exit(0)"]),
        ("fails", ["ValueError: seven is", ", in fails: raise ValueError"]),
    ],
)
def test_its_errors_have_record_and_line(place, function, parts):
    with pytest.raises(UserFunctionError) as caught:
        made(place, function)
    message = str(caught.value)
    at = 7 * 17 if function == "fails" else 0
    for part in (*parts, f"record of 1 bytes at {place}/in/a, byte offset {at}"):
        assert part in message
    if "failed" in message:
        line = 1 + MODULE[: MODULE.index(parts[1].split(": ")[1])].count("\n")
        assert f"mine_{place.name}.py, line {line}, in" in message
    assert not (place / "out").exists()


@pytest.mark.parametrize("first", [3, 23])
def test_the_first_ten_records_of_the_first_file_are_tried(place, first):
    put(place / "in", {"a": frames_of(RECORDS[:first]), "b": frames_of(RECORDS)})
    made(place, "seen")
    records = RECORDS[:first] + RECORDS
    assert read_output(place / "out") == records
    assert tried_on(place) == RECORDS[: min(first, 10)] + records
    assert made(place, "Cleaner.lower", split="other").records == len(records)


@pytest.mark.parametrize("inserted", [True, False])
def test_they_are_tried_behind_damage_at_the_beginning(place, inserted):
    data = frames_of(RECORDS)
    damaged = b"damage" + data if inserted else data[:13] + b"?" + data[14:]
    (place / "in" / "a").write_bytes(damaged)
    with pytest.raises(CorruptInputError):
        made(place, "seen")
    assert not (place / "out").exists()
    (place / "seen").unlink(missing_ok=True)
    made(place, "seen", on_corrupt="skip")
    left = RECORDS[not inserted :]
    assert tried_on(place) == left[:10] + left


ENDED = "its process was ended, as the thread theirs did not"
KILLED = "2 of 2 worker processes were killed"
FORKED = "the --map function forked a process, which was ended"


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        ("typo", "--workers 1", "'recrod' is not defined"),
        # Tried in a process of its own: the command lives on.
        ("killed", "--workers 2", "a worker process ended"),
        *(("exit", f"--workers {n}", "os._exit(") for n in (1, 2)),
        ("starts:same", "--workers 2", KILLED),
        ("hook", "--workers 2", KILLED),
        *(("thread", options, ENDED) for options in ("--workers 1", BEAM)),
        ("hook", BEAM_PROCESSES, ""),
        *(("fork", f"--workers {n}", FORKED) for n in (1, 2)),
    ],
)
def test_whatever_it_does_to_its_process(place, function, options, said):
    """What it leaves running keeps neither the commit nor the command."""
    argv = f"convert in/* out --num-shards 2 --map {spec(place, function)} {options}"
    done = gristmill(*argv.split(), cwd=place)
    assert said in done.stderr
    failed = function in ("typo", "killed", "exit")
    assert done.returncode == failed, done.stderr
    assert (place / "out").exists() <= (function not in ("typo", "killed"))
    assert (place / "out" / "dataset.json").exists() == (not failed)
    if not failed:
        assert "23 records in 2 shards, committed" in done.stdout
        assert sorted(records_of(place / "out")) == sorted(RECORDS)
