"""The writer of one shard, which checks the finished file.

A shard counts as written only after every chunk of the finished file has been decoded
and every record's checksum compared: compression and storage can fail silently.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.chunks import sums_of
from gristmill.dataset.arrayrecord.file_writer import ArrayRecordWriter, check_versions
from gristmill.dataset.arrayrecord.footer import (
    ChunkRange,
    Footer,
    read_footer,
    walk_file,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    DataLossError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.storage.open_file import read_range

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """A finished shard file, every record of it checked.

    Attributes:
        footer: Its footer.
        crc32cs: uint32 [records], the checksum of each record.
        digest: Digest of its records.
        file_bytes: Its size.
        file_crc32c: crc32c of the whole file.
    """

    footer: Footer
    crc32cs: npt.NDArray[np.uint32]
    digest: RecordsDigest
    file_bytes: int
    file_crc32c: int


class ShardWriter:
    """Writes records to a local file, then checks that the file holds them.

    Memory: the buffers of the writer (a chunk or a mebibyte, also in encoded form, and
    a list of its chunks), and 8 bytes a record.

    Args:
        path: Local file to create.
        options: Encoding of the file.

    Raises:
        StorageError: The file cannot be created.
        JobChangedError: The job was planned with another version of the writer.
    """

    def __init__(self, path: str, *, options: WriterOptions):
        self._path = path
        self._options = options
        self._crc32cs = array.array("I")
        check_versions(options, where=path)
        with failures_told(self._path):
            self._writer = ArrayRecordWriter(path, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            self.abandon()

    def write(self, records: Sequence[bytes], crc32cs: Sequence[int]) -> None:
        """Appends records. The finished shard is checked by their checksums.

        Raises StorageError if they cannot be written.
        """
        with failures_told(self._path):
            self._writer.write(records)
        self._crc32cs.extend(crc32cs)

    def abandon(self) -> None:
        """Closes the file unchecked, for an abandoned shard."""
        with contextlib.suppress(Exception):
            self._writer.abandon()

    def finish(self) -> WrittenShard:
        """Closes the file, reads it back, and compares every record's checksum.

        Raises:
            StorageError: The file could not be finished.
            DataLossError: It does not hold the records that were written.
        """
        with failures_told(self._path):
            self._writer.finish()
        with finished_file(self._path) as file:
            written = read_shard(file, path=self._path)
        expected, got = np.frombuffer(self._crc32cs, np.uint32), written.crc32cs
        if np.array_equal(expected, got):
            return written
        same = min(len(expected), len(got))
        differs = np.flatnonzero(expected[:same] != got[:same])
        raise other_records(
            f"{self._path}, record {differs[0] if len(differs) else same}",
            expected=f"{len(expected):,} records as they were written",
            got=f"{len(got):,} records, {len(differs):,} of them different",
        )


def read_shard(file: BinaryIO, *, path: str) -> WrittenShard:
    """Reads a whole shard file and decodes every record.

    Memory: a range of 1 MiB of the file (up to 4 MiB decoded), and 20 bytes a record.
    Raises CorruptShardError if it is damaged, TransposedChunkError if it holds
    transposed chunks.
    """
    footer, size = footer_of_file(file, path)
    crc32cs = [np.empty(0, np.uint32)]
    digest = RecordsDigest()
    file_crc = 0
    for data, chunks in walk_file(file, footer, path=path, size_bytes=size):
        file_crc = google_crc32c.extend(file_crc, data)
        if chunks is None:
            continue
        crcs, lengths = chunks.encoded().checksum()
        check_lengths(lengths, chunks)
        crc32cs.append(crcs)
        digest += RecordsDigest.of(crcs, lengths)
    return WrittenShard(
        footer=footer,
        crc32cs=np.concatenate(crc32cs),
        digest=digest,
        file_bytes=size,
        file_crc32c=file_crc,
    )


def check_lengths(lengths: npt.NDArray[np.int64], chunks: ChunkRange) -> None:
    """Checks that chunks have the sizes in the footer."""
    got = sums_of(lengths, chunks.chunk_records)
    expected = chunks.chunk_decoded_bytes
    wrong = np.flatnonzero(got != expected)
    if len(wrong):
        raise CorruptShardError(
            "a chunk is not the one that the ArrayRecord footer lists",
            where=f"{chunks.path}, chunk {chunks.first_chunk + wrong[0]:,}",
            expected=f"{expected[wrong[0]]:,} bytes of records",
            got=f"{got[wrong[0]]:,}",
            cure="restore the file from a copy, or convert this shard again",
        )


def footer_of_file(file: BinaryIO, path: str) -> tuple[Footer, int]:
    """Returns the footer of an open file, and the file's size."""
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    read = functools.partial(read_range, descriptor)
    # Records that were written are compared with it.
    return read_footer(read, size, path=path, hashed=False), size
