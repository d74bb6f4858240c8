"""Errors of writing a shard, and of reading the finished file back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO

from gristmill.dataset.base.errors import (
    CorruptShardError,
    DataLossError,
    StorageError,
    SystemLimitError,
)

_CURE = (
    "check free space and permissions, then run the same command again: finished "
    "shards are kept"
)


@contextlib.contextmanager
def failures_told(path: str) -> Iterator[None]:
    """Turns failures of a writer into StorageError, with a cure."""
    try:
        yield
    except OSError as e:
        cure = SystemLimitError.CURES.get(e.errno, _CURE)
        raise _failed(path, e.strerror or str(e), cure) from e


@contextlib.contextmanager
def finished_file(path: str) -> Iterator[BinaryIO]:
    """Opens a written file; raises StorageError if it cannot be read."""
    unreadable = "the finished file cannot be read"
    try:
        with open(path, "rb", buffering=0) as file:
            yield file
    except CorruptShardError as e:
        raise _failed(path, f"{unreadable}: {e.summary}") from e
    except OSError as e:
        raise _failed(path, f"{unreadable}: {e.strerror or e}") from e


def other_records(where: str, *, expected: str, got: str) -> DataLossError:
    """Returns the error for a finished shard that holds something else."""
    return DataLossError(
        "finished shard does not hold what was written to it",
        where=where,
        expected=expected,
        got=got,
        cure="check disk and memory of this machine, then run again",
    )


def _failed(path: str, got: str, cure: str = _CURE) -> StorageError:
    return StorageError("cannot write shard", where=path, got=got, cure=cure)
