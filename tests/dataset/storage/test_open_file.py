"""Ranges of local files that are there, that become shorter, and that cannot be read.

Covers: dataset/storage/open_file.py, loader/stats/clocks.py.
"""

import errno
import os
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptShardError, StorageError
from gristmill.dataset.storage.open_file import OpenFile
from gristmill.loader.reading.shard_file import read_ranges
from tests.support.unreadable import fail_reads

DATA = bytes(range(251)) * 40


@pytest.fixture
def file(tmp_path: pathlib.Path) -> OpenFile:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return OpenFile(str(path))


@given(
    bounds=st.lists(
        st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA))).map(sorted),
        max_size=6,
    )
)
def test_ranges_are_the_bytes_of_the_file(tmp_path_factory, bounds) -> None:
    path = tmp_path_factory.mktemp("ranges") / "file"
    path.write_bytes(DATA)
    files = [OpenFile(str(path)), OpenFile(str(path))]
    chosen = [files[i % 2] for i in range(len(bounds))]
    begins, ends = [begin for begin, _ in bounds], [end for _, end in bounds]
    expected = [DATA[begin:end] for begin, end in bounds]
    assert read_ranges(chosen, begins, ends) == expected
    assert [files[0][begin:end] for begin, end in bounds] == expected


def test_a_file_that_is_deleted_or_replaced_stays_readable(file) -> None:
    pathlib.Path(f"{file.path}.new").write_bytes(b"another")
    os.replace(f"{file.path}.new", file.path)
    assert file[5:9] == DATA[5:9]
    assert OpenFile(file.path).stamp != file.stamp


def test_it_is_closed_when_it_is_no_longer_used(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    file = OpenFile(str(path))
    descriptor = file.descriptor
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(FileNotFoundError):
        OpenFile(f"{path}.other")


_ENDING = """
import sys, types

early = sys.modules["early"] = types.ModuleType("early")
from gristmill.dataset.storage import open_file
from gristmill.loader.stats import clocks

# The interpreter clears the modules that are left, those imported last first.
sys.kept = early, open_file, clocks
early.files = open_file.OpenFile(sys.executable), clocks._Counts()
"""


def test_a_program_ends_quietly_with_files_open() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDING], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_file_that_was_truncated_is_named_with_both_sizes(file) -> None:
    os.truncate(file.path, 100)
    assert file[50:100] == DATA[50:100]
    for read in (
        lambda: file[90:110],
        lambda: read_ranges([file] * 2, [0, 90], [9, 110]),
    ):
        with pytest.raises(CorruptShardError) as raised:
            read()
        assert raised.value.where == file.path
        assert raised.value.expected == f"{len(DATA):,} bytes, as when it was opened"
        assert raised.value.got == "100 bytes"


def test_a_disk_that_cannot_read_is_an_error_that_names_the_file(file) -> None:
    other = OpenFile(file.path)
    fail_reads(file)
    for read in (
        lambda: file[50:60],
        lambda: read_ranges([other, file], [0, 50], [9, 60]),
    ):
        with pytest.raises(StorageError, match="the disk cannot read a file") as raised:
            read()
        assert raised.value.where == file.path
        assert raised.value.got == os.strerror(errno.EIO)
        assert "dmesg" in str(raised.value)
    assert other[50:60] == DATA[50:60]


def test_a_forked_process_reads_on_beside_this_one(file) -> None:
    child = os.fork()
    if not child:
        os._exit(not all(file[i : i + 9] == DATA[i : i + 9] for i in range(5000)))
    assert all(file[i : i + 9] == DATA[i : i + 9] for i in range(5000))
    assert os.waitpid(child, 0)[1] == 0
