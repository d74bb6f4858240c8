"""The official reader: for files that gristmill's own decoder leaves to it.

A thread that comes back from C++ to an interpreter that has begun to end is unwound by
CPython, which C++ answers with an abort of the whole process ("terminate called without
an active exception", https://github.com/python/cpython/issues/87135). So code
that calls C++ in a daemon thread does so inside a gate. At exit the gate waits for the
threads inside and lets no other thread in.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from gristmill.dataset.base.errors import CorruptShardError, InputError, StorageError
from gristmill.dataset.base.system_limits import check_stacks
from gristmill.dataset.storage.open_file import check_regular


class ExitGate:
    """A context manager, for any number of threads at once.

    The interpreter does not end while a thread is inside. Once it has begun to end, a
    daemon thread that enters blocks forever, which the process does not wait for; the
    main thread gets a `StorageError` instead.

    Args:
        patience_seconds: How long to wait at exit for the threads inside. Calls are
            short; this limits one that hangs.
    """

    def __init__(self, *, patience_seconds: float = 5.0) -> None:
        self._patience_seconds = patience_seconds
        # Counts without a lock: append and pop are atomic.
        self._inside: collections.deque[None] = collections.deque()
        self._closed = False
        atexit.register(self._close)
        # A forked process has none of these threads.
        os.register_at_fork(after_in_child=self._inside.clear)

    def __enter__(self) -> None:
        self._inside.append(None)
        if self._closed:
            self._inside.pop()
            if threading.current_thread() is threading.main_thread():
                raise StorageError(
                    "cannot read any more: the interpreter is ending",
                    cure="read before the program ends; atexit functions cannot read",
                )
            threading.Event().wait()

    def __exit__(self, *_: object) -> None:
        self._inside.pop()

    def _close(self) -> None:
        self._closed = True
        last = time.monotonic() + self._patience_seconds
        while self._inside and time.monotonic() < last:
            time.sleep(0.001)


exit_gate = ExitGate()


_BATCH_BYTES = 16 << 20
# The reader starts this many threads, once per process. If the system starts fewer, it
# waits forever, or crashes.
_THREADS = 64
_MAX_BATCH_RECORDS = 100_000


class OfficialReader:
    """A local ArrayRecord file, opened with the official reader. A context manager.

    The reader is C++, so every call runs inside the exit gate: threads that do not
    keep the process from ending may use it.

    Args:
        path: A local file.
        options: Options of the official reader, such as `readahead_buffer_size`.

    Raises:
        InputError: The file is not local. In a bucket, the official reader returns
            empty records if an answer is cut short.
        SystemLimitError: The limit of address space is too low.
        CorruptShardError: The file cannot be opened.
    """

    def __init__(self, path: str, *, options: Mapping[str, str] | None = None):
        # Imported here because few files need it.
        from array_record.python.array_record_module import ArrayRecordReader

        if "://" in path:
            raise InputError(
                "file with transposed chunks is not on a local disk",
                where=path,
                expected="a local path: only the official reader decodes such chunks",
                cure="copy the file to a local disk or a mounted bucket",
            )
        # It would wait for the writer of a FIFO.
        with contextlib.suppress(FileNotFoundError):
            check_regular(path, os.stat(path))
        text = ",".join(f"{key}:{value}" for key, value in (options or {}).items())
        self._path = path
        _check_room()
        with exit_gate:
            try:
                self._reader = ArrayRecordReader(path, options=text)
            except Exception as e:  # The errors that it raises are not documented.
                raise _unreadable(path, str(e)) from e

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with exit_gate:
            try:
                self._reader.close()
            except Exception as e:  # It repeats an earlier error.
                if error is None:
                    raise _unreadable(self._path, str(e)) from e

    def read_range(self, begin: int, end: int) -> list[bytes]:
        """Returns the records [begin, end); raises CorruptShardError on failure."""
        where = f"{self._path}, records {begin:,} to {end:,}"
        return self._read(begin, end, count=end - begin, where=where)

    def read_records(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the records with these numbers, in their order; raises the same."""
        return self._read(numbers, count=len(numbers), where=self._path)

    def _read(self, *which: Any, count: int, where: str) -> list[bytes]:
        with exit_gate:
            try:
                records = list(self._reader.read(*which))
            except Exception as e:  # The errors that it raises are not documented.
                raise _unreadable(where, str(e)) from e
        if len(records) != count:
            raise _unreadable(where, f"{len(records):,} records instead of {count:,}")
        return records


@functools.cache
def _check_room() -> None:
    """Checks once per process that the reader's threads can start."""
    check_stacks(_THREADS, what="the official ArrayRecord reader")


def read_with_official_reader(
    path: str, begin: int, end: int, *, mean_bytes: int
) -> Iterator[list[bytes]]:
    """Yields the records [begin, end) of a file, about 16 MiB at a time.

    `mean_bytes` is the approximate size of a record. Opens the file and raises as
    `OfficialReader` does.
    """
    step = max(1, min(_MAX_BATCH_RECORDS, _BATCH_BYTES // max(mean_bytes, 1)))
    # Open until the caller is done: closing it would end the file.
    with OfficialReader(path) as reader:
        for first in range(begin, end, step):
            yield reader.read_range(first, min(first + step, end))


def _unreadable(where: str, got: str) -> CorruptShardError:
    return CorruptShardError(
        "the official reader cannot read this ArrayRecord file",
        where=where,
        got=got,
        cure="restore the file from a copy, or write it again",
    )
