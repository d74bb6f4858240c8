"""Maps of files whose pages cannot be read any more, in the middle of their use."""

import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zstandard

from gristmill.dataset.mapped_file import MappedFile, is_damaged, map_file

SIZE = 64 * mmap.PAGESIZE
DATA = np.random.default_rng(0).bytes(SIZE)
LEFT = 3 * mmap.PAGESIZE
PACKED = zstandard.ZstdCompressor().compress(DATA)


def mapped(path: pathlib.Path, data: bytes = DATA) -> MappedFile:
    path.write_bytes(data)
    with open(path, "rb") as file:
        return map_file(file)


def elements(view: memoryview) -> bytes:
    numbers = view[: SIZE // 4 * 4].cast("I")
    return b"".join(numbers[i].to_bytes(4, "little") for i in range(len(numbers)))


READS: dict[str, Callable[[memoryview], bytes]] = {
    "bytes": bytes,
    "join": lambda view: b"".join(view[i : i + 999] for i in range(0, SIZE, 999)),
    "elements": elements,
    "take": lambda view: (
        np.frombuffer(view, np.uint8).take(np.arange(SIZE)).astype(np.uint8).tobytes()
    ),
}


@pytest.mark.parametrize("how", READS)
def test_what_cannot_be_read_is_zeros_and_the_map_is_damaged(
    tmp_path: pathlib.Path, how: str
) -> None:
    path = tmp_path / "file"
    data = mapped(path)
    view = memoryview(data)
    assert READS[how](view) == DATA
    assert not is_damaged(view)
    os.truncate(path, LEFT)
    assert not is_damaged(view)  # Nobody has read it since.
    assert READS[how](view) == DATA[:LEFT] + bytes(SIZE - LEFT)
    assert is_damaged(view[5:10])
    assert is_damaged(data)
    os.truncate(path, SIZE)
    path.write_bytes(DATA)
    assert is_damaged(view)
    assert not is_damaged(b"")
    with open(path, "rb") as file:
        assert READS[how](memoryview(map_file(file))) == DATA


def test_damage_met_by_decompression_and_checksums(tmp_path: pathlib.Path) -> None:
    """Code that has given up the interpreter's lock, and code that holds it."""
    path = tmp_path / "file"
    data = mapped(path, PACKED)
    os.truncate(path, LEFT)
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdDecompressor().decompress(data)
    assert is_damaged(data)
    data = mapped(path)
    os.truncate(path, LEFT)
    expected = google_crc32c.value(DATA[:LEFT] + bytes(SIZE - LEFT))
    assert google_crc32c.value(np.frombuffer(data, np.uint8)) == expected
    assert is_damaged(data)


def test_a_page_is_lost_alone_where_the_file_has_its_size(
    tmp_path: pathlib.Path,
) -> None:
    """As after an error of the disk: the file is truncated, and then whole again."""
    path = tmp_path / "file"
    data = mapped(path)
    os.truncate(path, 0)
    path.write_bytes(DATA)
    # What a fault at the second page does.
    assert data.replace_page(data._begin + mmap.PAGESIZE + 7)
    assert not data.replace_page(data._begin - 1)
    assert not data.replace_page(data._begin + SIZE)
    expected = bytearray(DATA)
    expected[mmap.PAGESIZE : 2 * mmap.PAGESIZE] = bytes(mmap.PAGESIZE)
    assert bytes(data) == expected
    assert is_damaged(data)


def test_threads_that_meet_damage_at_once(tmp_path: pathlib.Path) -> None:
    threads, rounds = 6, 30
    start = threading.Barrier(threads)
    shared: dict[str, Any] = {}

    def read(number: int) -> None:
        reads = list(READS.values())
        for turn in range(rounds):
            path = tmp_path / f"file{turn}"
            if number == 0:
                shared["view"] = memoryview(mapped(path))
                os.truncate(path, LEFT)
            start.wait(60)
            view = shared["view"]
            read = reads[(turn + number) % len(reads)]
            assert read(view) == DATA[:LEFT] + bytes(SIZE - LEFT)
            own = mapped(tmp_path / f"own{number}")
            assert read(memoryview(own)) == DATA
            assert is_damaged(view)
            assert not is_damaged(own)
            start.wait(60)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(read, number) for number in range(threads)]:
            done.result(120)


def test_an_empty_file_is_not_mapped(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        mapped(tmp_path / "file", b"")


def test_a_forked_process_reads_on_too(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    data = mapped(path)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os.truncate(path, LEFT)
        os._exit(not (bytes(data)[LEFT:] == bytes(SIZE - LEFT) and is_damaged(data)))
    assert os.waitpid(child, 0)[1] == 0
    assert not is_damaged(data)  # It is another map, of the same file.
    assert bytes(data)[LEFT:] == bytes(SIZE - LEFT)


PROGRAM = """
import mmap, os, signal, sys
from gristmill.dataset.mapped_file import is_damaged, map_file

def use(make):
    with open(sys.argv[1], "wb") as file:
        file.write(b"x" * 9999)
    with open(sys.argv[1], "rb") as file:
        data = make(file)
    os.truncate(sys.argv[1], 0)
    return data, data[5000]

data, byte = use(map_file)
assert byte == 0 and is_damaged(data)
print("read on", flush=True)
{then}
"""
ELSEWHERE = "use(lambda file: mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))"


@pytest.mark.parametrize(
    ("then", "options", "stderr"),
    [
        (ELSEWHERE, [], ""),
        (ELSEWHERE, ["-X", "faulthandler"], "Fatal Python error: Bus error"),
        ("os.kill(os.getpid(), signal.SIGBUS); signal.sigtimedwait([], 5)", [], ""),
    ],
    ids=["default", "faulthandler", "sent"],
)
def test_what_is_not_ours_ends_the_process_as_it_would_without_us(
    tmp_path: pathlib.Path, then: str, options: list[str], stderr: str
) -> None:
    ended = subprocess.run(
        [sys.executable, *options, "-c", PROGRAM.format(then=then), tmp_path / "file"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.stdout == "read on\n"
    assert ended.returncode == -signal.SIGBUS
    assert ended.stderr.startswith(stderr)
    assert bool(ended.stderr) == bool(stderr)
