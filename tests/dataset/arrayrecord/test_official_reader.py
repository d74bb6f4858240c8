"""Reading local files with the official reader."""

from __future__ import annotations

import itertools
import pathlib
import random
import subprocess
import sys
import time

import pytest
from array_record.python.array_record_module import ArrayRecordReader

from gristmill.dataset.arrayrecord.official_reader import (
    OfficialReader,
    read_with_official_reader,
)
from gristmill.dataset.base.errors import CorruptShardError, InputError
from tests.support.records import write_array_records

RECORDS = [b"%d" % number * number for number in range(20)]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "shard"
    write_array_records(path, RECORDS, options="group_size:3,transpose:true")
    return str(path)


def test_ranges_and_numbers(path: str) -> None:
    options = {"readahead_buffer_size": "0"}
    with OfficialReader(path, options=options) as reader:
        assert reader.read_range(3, 7) == RECORDS[3:7]
        assert reader.read_records([9, 2, 9]) == [RECORDS[i] for i in (9, 2, 9)]


@pytest.mark.parametrize("mean_bytes", [1, 3 << 20])
def test_batches(path: str, mean_bytes: int) -> None:
    batches = list(read_with_official_reader(path, 2, 18, mean_bytes=mean_bytes))
    assert list(itertools.chain.from_iterable(batches)) == RECORDS[2:18]
    assert [len(batch) for batch in batches][:-1] == [5, 5, 5][: len(batches) - 1]


def test_records_that_are_not_there(path: str) -> None:
    with OfficialReader(path) as reader:
        with pytest.raises(CorruptShardError) as caught:
            reader.read_range(18, 22)
        assert caught.value.where == f"{path}, records 18 to 22"
        assert caught.value.got
        with pytest.raises(CorruptShardError):
            reader.read_records([20])


def test_a_file_that_is_no_arrayrecord_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    with pytest.raises(CorruptShardError, match="official reader"):
        list(read_with_official_reader(str(path), 0, 1, mean_bytes=1))


def test_files_elsewhere_are_refused() -> None:
    with pytest.raises(InputError, match="not on a local disk"):
        OfficialReader("gs://bucket/shard")


@pytest.mark.parametrize("keep_bytes", [-1, -65_536, 70_000, 1000])
def test_closing_hides_no_error(tmp_path: pathlib.Path, keep_bytes: int) -> None:
    """Of a file without its end, the official reader complains again when closed."""
    path = tmp_path / "shard"
    records = [random.Random(number).randbytes(1000) for number in range(200)]
    write_array_records(path, records, options="group_size:1,transpose:true")
    path.write_bytes(path.read_bytes()[:keep_bytes])
    official = ArrayRecordReader(str(path))
    with pytest.raises(RuntimeError, match=r"64KB|Riegeli"):
        official.read([150])
    with pytest.raises(RuntimeError, match=r"64KB|Riegeli"):
        official.close()
    with pytest.raises(CorruptShardError, match="official reader cannot read"):
        list(read_with_official_reader(str(path), 0, 200, mean_bytes=1000))
    with (
        pytest.raises(CorruptShardError, match="official reader cannot read") as caught,
        OfficialReader(str(path)) as reader,
    ):
        reader.read_records([150])
    assert caught.value.where == str(path)
    with pytest.raises(KeyError, match="mine"), OfficialReader(str(path)):
        raise KeyError("mine")
    with (
        pytest.raises(CorruptShardError, match=r"64KB|Riegeli"),
        OfficialReader(str(path)),
    ):
        pass


BEGIN = """
import atexit, threading, time
from gristmill.dataset.arrayrecord.official_reader import exit_gate
def say(text):
    print(text, flush=True)
def in_thread(work):
    threading.Thread(target=work, daemon=True).start()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_end_waits_for_threads_inside_and_lets_nobody_in() -> None:
    done = run(
        """
inside = threading.Event()
def first():
    with exit_gate:
        inside.set()
        wait_until_closed()
        time.sleep(0.1)
        say("first")
def second():
    wait_until_closed()
    with exit_gate:
        say("second")
def wait_until_closed():
    while not exit_gate._closed:
        time.sleep(0.001)
in_thread(first)
in_thread(second)
inside.wait()
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "first\n", "")


def test_what_never_comes_out_does_not_hold_up_the_end_for_long() -> None:
    code = """
from gristmill.dataset.arrayrecord.official_reader import ExitGate
exit_gate = ExitGate(patience_seconds=0.2)
inside = threading.Event()
def work():
    with exit_gate:
        inside.set()
        time.sleep(100)
in_thread(work)
inside.wait()
"""
    begin = time.monotonic()
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - begin < 60


def test_the_main_thread_is_told() -> None:
    done = run(
        """
exit_gate._close()
with exit_gate:
    say("in")
"""
    )
    assert done.returncode == 1
    assert (
        "StorageError: cannot read any more: the interpreter is ending" in done.stderr
    )


@pytest.mark.parametrize("error", ["", "raise ValueError('an error')"])
def test_an_error_leaves_the_gate(error: str) -> None:
    done = run(
        f"""
begin = time.monotonic()
def end():
    say("quick" if time.monotonic() - begin < 3 else "slow")
try:
    with exit_gate:
        pass
        {error}
except ValueError as e:
    say(e)
begin = time.monotonic()
exit_gate._close()
end()
"""
    )
    assert done.stdout == ("an error\n" if error else "") + "quick\n", done.stderr


@pytest.mark.slow
def test_a_thread_that_asked_is_never_unwound_by_the_library() -> None:
    """Many threads begin reads while the interpreter ends."""
    code = """
import tensorstore
store = tensorstore.KvStore.open({"driver": "memory"}).result()
store["a"] = b"1"
def work():
    while True:
        with exit_gate:
            store.read("a").add_done_callback(lambda future: None)
for _ in range(8):
    in_thread(work)
time.sleep(0.05)
"""
    for _ in range(3):
        done = run(code)
        assert (done.returncode, done.stderr) == (0, "")
