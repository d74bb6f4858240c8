"""Writing one shard: the official writer, and a second look at what it left.

The official `ArrayRecordWriter` does not raise on every failure, and leaves an empty
file when it is not closed. So a shard counts as written only after every chunk of the
finished file was decoded and every record's checksum compared.
"""

from __future__ import annotations

import array
import dataclasses
import os
import re
from collections.abc import Sequence
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset import arrayrecord
from gristmill.dataset.chunk_codec import checksum_chunks
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import DataLossError, InputError, StorageError

# What the official writer accepts: levels by name, None where there is no level.
_LEVELS = {
    "zstd": range(-131072, 23),
    "brotli": range(12),
    "snappy": None,
    "uncompressed": None,
}
_DEFAULT_LEVELS = {"zstd": 3, "brotli": 6}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterOptions:
    """How shards are encoded.

    Attributes:
        group_size: Records in a chunk. 1 gives the fastest random reads; 16 or more
            compresses better and suits readers that go block by block.
        compression: `zstd[:LEVEL]`, `brotli[:LEVEL]`, `snappy` or `uncompressed`.
    """

    group_size: int = 1
    compression: str = "zstd:3"

    def __post_init__(self) -> None:
        if not 1 <= self.group_size <= 1 << 20:
            raise InputError(
                "group size is out of range",
                expected="1 to 1,048,576 records",
                got=self.group_size,
                cure="choose another with --group-size",
            )
        # One spelling for one meaning: it is compared between runs.
        object.__setattr__(self, "compression", _parse_compression(self.compression))

    @property
    def official(self) -> str:
        """The options string of the official writer.

        The number of threads is fixed because the writer records it in the footer,
        and equal input must give equal bytes on any machine.
        """
        return f"group_size:{self.group_size},{self.compression},max_parallelism:1"


def _parse_compression(text: str) -> str:
    match = re.fullmatch(r"([a-z]+)(?::(-?\d+))?", text)
    name = match.group(1) if match else ""
    levels = _LEVELS.get(name)
    level = match.group(2) if match else None
    good = name in _LEVELS and (level is None or (levels and int(level) in levels))
    if not good:
        raise InputError(
            "unknown compression",
            expected="zstd:LEVEL (-131072 to 22), brotli:LEVEL (0 to 11), snappy or "
            "uncompressed",
            got=repr(text),
            cure="choose another with --compression",
        )
    if levels is None:
        return name
    return f"{name}:{_DEFAULT_LEVELS[name] if level is None else int(level)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """A finished shard file, every record of it checked.

    Attributes:
        footer: Where its chunks are.
        crc32cs: uint32 [records], the checksum of each record.
        digest: Digest of its records.
        file_bytes: Its size.
        file_crc32c: crc32c of the whole file.
    """

    footer: arrayrecord.Footer
    crc32cs: npt.NDArray[np.uint32]
    digest: RecordsDigest
    file_bytes: int
    file_crc32c: int


class ShardWriter:
    """Writes records to a local file, then proves that they are in it.

    Memory: what the official writer holds (a chunk, and its list of chunks), and
    4 bytes a record.

    Args:
        path: Local file to create.
        options: How to encode it.

    Raises:
        StorageError: The file cannot be created.
    """

    def __init__(self, path: str, *, options: WriterOptions):
        # Imported here so that readers of datasets do not need it.
        from array_record.python.array_record_module import ArrayRecordWriter

        self._path = path
        self._options = options
        self._crc32cs = array.array("I")
        try:
            # The official constructor accepts any path and fails later.
            open(path, "wb").close()
        except OSError as e:
            raise self._failed(e.strerror or str(e)) from e
        self._writer = ArrayRecordWriter(path, options.official)

    def _failed(self, got: str) -> StorageError:
        return StorageError(
            "cannot write shard",
            where=self._path,
            got=got,
            cure="check free space and permissions, then run the same command again: "
            "finished shards are kept",
        )

    def write(self, records: Sequence[bytes], crc32cs: Sequence[int]) -> None:
        """Appends records.

        Args:
            records: [records].
            crc32cs: [records], their checksums, by which the finished shard is
                checked.

        Raises:
            StorageError: The official writer failed.
        """
        write = self._writer.write
        try:
            for record in records:
                write(record)
        except Exception as e:  # What it raises is not documented.
            raise self._failed(str(e)) from e
        self._crc32cs.extend(crc32cs)

    def abandon(self) -> None:
        """Closes the file without a look at it, for a shard that is given up."""
        try:
            self._writer.close()
        except Exception:
            pass

    def finish(self) -> WrittenShard:
        """Closes the file, decodes it again and compares every record.

        Raises:
            StorageError: The file could not be finished.
            DataLossError: It does not hold the records that were written.
        """
        if not self._writer.ok():  # Always False after `close`.
            raise self._failed("the official writer reports a failure")
        try:
            self._writer.close()
        except Exception as e:
            raise self._failed(str(e)) from e
        expected = np.frombuffer(self._crc32cs, np.uint32)
        with open(self._path, "rb", buffering=0) as file:
            written = read_shard(file, path=self._path)
        if not np.array_equal(written.crc32cs, expected):
            same = min(len(expected), written.digest.records)
            differs = np.flatnonzero(expected[:same] != written.crc32cs[:same])
            raise DataLossError(
                "finished shard does not hold what was written to it",
                where=f"{self._path}, record {differs[0] if len(differs) else same}",
                expected=f"{len(expected):,} records with their checksums",
                got=f"{written.digest.records:,} records, {len(differs):,} of them "
                "different",
                cure="check disk and memory of this machine, then run again",
            )
        return written


def read_shard(file: BinaryIO, *, path: str) -> WrittenShard:
    """Reads a whole shard file and decodes every record.

    Memory: one window of 4 MiB of the file (up to 16 MiB decoded), and 20 bytes a
    record.

    Args:
        file: The open file.
        path: For messages.

    Raises:
        CorruptShardError: It is damaged.
        TransposedChunkError: It holds transposed chunks.
    """
    size = os.fstat(file.fileno()).st_size

    def read(begin: int, end: int) -> bytes:
        pieces = []
        while begin < end:
            piece = os.pread(file.fileno(), end - begin, begin)
            if not piece:
                break
            pieces.append(piece)
            begin += len(piece)
        return b"".join(pieces)

    footer = arrayrecord.read_footer(read, size, path=path)
    offsets = footer.chunk_offsets
    crc32cs: list[npt.NDArray[np.uint32]] = []
    digest = RecordsDigest()
    file_crc = google_crc32c.value(read(0, int(offsets[0])))
    for first, last in arrayrecord.chunk_windows(footer):
        data = read(int(offsets[first]), int(offsets[last]))
        file_crc = google_crc32c.extend(file_crc, data)
        buffer, starts = arrayrecord.logical_chunks(data, footer, first, last)
        crcs, lengths = checksum_chunks(buffer, starts, path=path)
        crc32cs.append(crcs)
        digest += RecordsDigest.of(crcs, lengths)
    for begin in range(int(offsets[-1]), size, 4 << 20):
        piece = read(begin, min(begin + (4 << 20), size))
        file_crc = google_crc32c.extend(file_crc, piece)
    return WrittenShard(
        footer=footer,
        crc32cs=np.concatenate(crc32cs) if crc32cs else np.empty(0, np.uint32),
        digest=digest,
        file_bytes=size,
        file_crc32c=file_crc,
    )
