"""The writer of one shard, from records or copied chunks, which checks its file.

A shard counts as written only after every chunk of the finished file has been decoded
and every record's checksum compared: compression and storage can fail silently.

A chunk is copied if all its records are taken and the official reader accepts it: that
reader expects the same number of records in every chunk but the last. In shards with
one record per chunk all chunks are copied. In others, those after a removed record are
encoded again, until whole chunks follow each other. Copied chunks are not decoded,
unless no index has the checksums of their records. Their hashes are compared when they
are read, and again in the finished file.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.chunk_hash import HashArray
from gristmill.dataset.arrayrecord.chunks import (
    CHUNK_HEADER_BYTES,
    BoolArray,
    EncodedChunks,
    IntArray,
    headers_of,
    sums_of,
)
from gristmill.dataset.arrayrecord.file_writer import (
    ArrayRecordWriter,
    Chunks,
    check_versions,
)
from gristmill.dataset.arrayrecord.footer import (
    ChunkRange,
    Footer,
    read_footer,
    walk_chunks,
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
from gristmill.dataset.storage.local import read_range

CrcArray = npt.NDArray[np.uint32]

_CURE = (
    "check free space and permissions, then run the same command again: finished "
    "shards are kept"
)


@contextlib.contextmanager
def _failures_told(path: str, doing: str = "") -> Iterator[None]:
    """Turns failures of a writer into StorageError, with a cure."""
    try:
        yield
    except (OSError, CorruptShardError) as e:
        cure, got = _CURE, str(e)
        if isinstance(e, CorruptShardError):
            got = e.summary
        else:
            cure, got = SystemLimitError.CURES.get(e.errno, cure), e.strerror or got
        raise StorageError(
            "cannot write shard", where=path, got=doing + got, cure=cure
        ) from e


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredShard:
    """A shard to copy from.

    Attributes:
        path: Path of the shard, for messages.
        footer: Its footer.
        crc32cs: uint32 [records], the checksum of each record, from its index. None if
            it has no index: then its records are decoded for them.
        open: Opens a half-open range of its bytes.
    """

    path: str
    footer: Footer
    crc32cs: CrcArray | None
    open: Callable[[int, int], contextlib.AbstractContextManager[BinaryIO]]


@dataclasses.dataclass(frozen=True)
class _Copied:
    """The chunks of a file that were copied.

    Attributes:
        firsts: int64 [chunks], the number of the first record of each.
        hashes: uint64 [chunks], their hashes.
        crc32cs: uint32 [records], the checksums of all records of the file. None if it
            is not a copy: then the hashes of its chunks are not compared.
    """

    firsts: IntArray
    hashes: HashArray
    crc32cs: CrcArray | None

    def checksums(self, chunks: ChunkRange) -> tuple[CrcArray, IntArray]:
        """Returns crc32cs and lengths of records, without decoding copied chunks."""
        if self.crc32cs is None:
            return chunks.encoded().checksum()
        encoded = chunks.encoded(hashed=True)
        lengths, counts = encoded.lengths(), chunks.chunk_records
        rows = np.cumsum(counts) - counts
        at = np.searchsorted(self.firsts, chunks.first_record + rows)
        is_copied = np.append(self.firsts, -1)[at] == chunks.first_record + rows
        headers = headers_of(encoded.buffer, encoded.table["begin"])
        is_copied &= np.append(self.hashes, 0)[at] == headers["data_hash"]
        crc32cs = np.zeros(len(lengths), np.uint32)
        known = self.crc32cs[chunks.first_record :][: len(lengths)]
        crc32cs[: len(known)] = known
        others = np.flatnonzero(~is_copied)
        if len(others):
            own = _rows(rows[others], counts[others])
            crc32cs[own], _ = chunks.encoded(others).checksum()
        return crc32cs, lengths


_NO_COPY = _Copied(np.empty(0, np.int64), np.empty(0, np.uint64), None)


class ShardWriter:
    """Writes records to a local file, then checks that the file holds them.

    Memory: the buffers of the writer (a chunk or a mebibyte, also in encoded form, and
    a list of its chunks), 8 bytes a record, and 1 MiB of a shard that is copied from
    (up to 4 MiB decoded), or one chunk if that is larger.

    Args:
        path: Local file to create.
        options: Encoding of records that are not copied. Nothing is copied unless its
            group size is that of the shards to copy from.

    Raises:
        StorageError: The file cannot be created.
        JobChangedError: The job was planned with another version of the writer.
    """

    def __init__(self, path: str, *, options: WriterOptions):
        self._path, self._group = path, options.group_size
        self._crc32cs = array.array("I")
        self._is_copy = False
        self._copied_firsts = [np.empty(0, np.int64)]
        self._copied_hashes = [np.empty(0, np.uint64)]
        check_versions(options, where=path)
        with _failures_told(path):
            self._writer = ArrayRecordWriter(path, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.abandon()  # Has no effect on a finished file.

    def write(self, records: Sequence[bytes], crc32cs: Sequence[int]) -> None:
        """Appends records. The finished shard is checked by their checksums.

        Raises StorageError if they cannot be written.
        """
        with _failures_told(self._path):
            self._writer.write(records)
        self._crc32cs.extend(crc32cs)

    def copy(
        self, shard: StoredShard, first_record: int, taken: BoolArray
    ) -> tuple[CrcArray, IntArray]:
        """Appends records of a shard, in their order.

        Args:
            shard: The shard.
            first_record: The first of some consecutive records.
            taken: bool [records], whether to take each.

        Returns:
            The original checksum, uint32 [records], and length, int64 [records], of
            each, taken or not.

        Raises:
            CorruptShardError: The shard is damaged, or its index belongs to another
                shard.
            TransposedChunkError: It holds transposed chunks.
            StorageError: It cannot be read, or the copy cannot be written.
        """
        footer, end_record = shard.footer, first_record + len(taken)
        if not 0 <= first_record <= end_record <= footer.records:
            raise IndexError("no such records")
        self._is_copy = True
        if not len(taken):
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        ends = np.cumsum(footer.chunk_records)
        first = int(np.searchsorted(ends, first_record, side="right"))
        last = int(np.searchsorted(ends, end_record, side="left")) + 1
        # Whole chunks are read: the records around these are not taken.
        begin = int(ends[first - 1]) if first else 0
        own = slice(first_record - begin, end_record - begin)
        mask = np.zeros(int(ends[last - 1]) - begin, np.bool_)
        mask[own] = taken
        offsets = footer.chunk_offsets
        with shard.open(int(offsets[first]), int(offsets[last])) as file:
            of_chunks = [
                self._take(shard, chunks, mask[chunks.first_record - begin :])
                for chunks in walk_chunks(
                    file, footer, path=shard.path, first_chunk=first, last_chunk=last
                )
            ]
        crc32cs, lengths = map(np.concatenate, zip(*of_chunks, strict=True))
        return crc32cs[own], lengths[own]

    def _take(
        self, shard: StoredShard, chunks: ChunkRange, taken: BoolArray
    ) -> tuple[CrcArray, IntArray]:
        """Appends records of a range of chunks; gives checksums and lengths of all."""
        encoded = chunks.encoded(hashed=True)
        lengths, counts = encoded.lengths(), chunks.chunk_records
        _check_lengths(lengths, chunks)
        taken = taken[: len(lengths)]
        firsts = np.cumsum(counts) - counts
        kept = sums_of(taken.astype(np.int64), counts)
        if shard.crc32cs is None:
            crc32cs, _ = chunks.encoded().checksum()
        else:
            crc32cs = shard.crc32cs[chunks.first_record :][: len(taken)]
        wanted = np.flatnonzero(kept)
        whole = (kept == counts)[wanted] & (counts == self._group)[wanted]
        for run, copied in _runs(wanted, whole):
            rows = _rows(firsts[run], counts[run])
            if copied and self._writer.at_chunk_end:
                stored = _stored(encoded, run)
                with _failures_told(self._path):
                    self._writer.append(stored)
                before = np.cumsum(counts[run]) - counts[run]
                self._copied_firsts.append(len(self._crc32cs) + before)
                self._copied_hashes.append(stored.data_hashes)
                self._crc32cs.frombytes(crc32cs[rows].tobytes())
                continue
            records = chunks.encoded(run).decode()
            if shard.crc32cs is not None:
                got = np.fromiter(map(google_crc32c.value, records), np.uint32)
                _compare(shard, chunks.first_record + rows, got)
            chosen = np.flatnonzero(taken[rows])
            self.write(
                [records[at] for at in chosen.tolist()], crc32cs[rows[chosen]].tolist()
            )
        return crc32cs, lengths

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
        with _failures_told(self._path):
            self._writer.finish()
        expected = np.frombuffer(self._crc32cs, np.uint32)
        copied = _Copied(
            np.concatenate(self._copied_firsts),
            np.concatenate(self._copied_hashes),
            expected if self._is_copy else None,
        )
        reading = _failures_told(self._path, "the finished file cannot be read: ")
        with reading, open(self._path, "rb", buffering=0) as file:
            written = read_shard(file, path=self._path, copied=copied)
        got = written.crc32cs
        if np.array_equal(expected, got):
            return written
        same = min(len(expected), len(got))
        differs = np.flatnonzero(expected[:same] != got[:same])
        raise DataLossError(
            "finished shard does not hold what was written to it",
            where=f"{self._path}, record {differs[0] if len(differs) else same}",
            expected=f"{len(expected):,} records as they were written",
            got=f"{len(got):,} records, {len(differs):,} of them different",
            cure="check disk and memory of this machine, then run again",
        )


def read_shard(
    file: BinaryIO, *, path: str, copied: _Copied = _NO_COPY
) -> WrittenShard:
    """Reads a whole shard file and decodes every record that was not copied.

    Memory: a range of 1 MiB of the file (up to 4 MiB decoded), and 20 bytes a record.
    Raises CorruptShardError if it is damaged, TransposedChunkError if it holds
    transposed chunks.
    """
    size = os.fstat(file.fileno()).st_size
    read = functools.partial(read_range, file.fileno())
    # The caller compares its records with those that were written.
    footer = read_footer(read, size, path=path, hashed=False)
    crc32cs = [np.empty(0, np.uint32)]
    digest = RecordsDigest()
    file_crc = 0
    for data, chunks in walk_file(file, footer, path=path, size_bytes=size):
        file_crc = google_crc32c.extend(file_crc, data)
        if chunks is None:
            continue
        crcs, lengths = copied.checksums(chunks)
        _check_lengths(lengths, chunks)
        crc32cs.append(crcs)
        digest += RecordsDigest.of(crcs, lengths)
    return WrittenShard(
        footer=footer,
        crc32cs=np.concatenate(crc32cs),
        digest=digest,
        file_bytes=size,
        file_crc32c=file_crc,
    )


def _check_lengths(lengths: npt.NDArray[np.int64], chunks: ChunkRange) -> None:
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


def _compare(shard: StoredShard, numbers: IntArray, got: CrcArray) -> None:
    """Compares the checksums of some records with those in the index."""
    assert shard.crc32cs is not None
    expected = shard.crc32cs[numbers]
    wrong = np.flatnonzero(got != expected)
    if len(wrong):
        at = wrong[0]
        raise CorruptShardError(
            "a record is not the one that the shard's index describes",
            where=f"{shard.path}, record {numbers[at]:,}",
            expected=f"crc32c {expected[at]:#010x}",
            got=f"{got[at]:#010x}",
            cure="restore the shard and its index from a copy, or convert the "
            "dataset again",
        )


def _runs(chunks: IntArray, whole: BoolArray) -> Iterator[tuple[IntArray, bool]]:
    """Yields runs of chunks that are all whole, or all partial."""
    borders = np.flatnonzero(whole[1:] != whole[:-1]) + 1
    for run in np.split(np.arange(len(chunks)), borders):
        if len(run):
            yield chunks[run], bool(whole[run[0]])


def _rows(firsts: IntArray, counts: IntArray) -> IntArray:
    """Returns the numbers first to first + count - 1 for each, one after the other."""
    places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(firsts, counts) + places)


def _stored(encoded: EncodedChunks, run: IntArray) -> Chunks:
    """Returns some chunks of a buffer, without the bytes between them."""
    table = encoded.table[run]
    starts, headers = table["begin"], headers_of(encoded.buffer, table["begin"])
    sizes = CHUNK_HEADER_BYTES + headers["data_size"].astype(np.int64)
    ends = starts + sizes
    gaps = np.flatnonzero(starts[1:] != ends[:-1])
    begins = starts[np.append(0, gaps + 1)].tolist()
    stops = ends[np.append(gaps, len(ends) - 1)].tolist()
    view = memoryview(encoded.buffer)
    pieces = [view[begin:stop] for begin, stop in zip(begins, stops, strict=True)]
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    decoded_bytes = headers["decoded_data_size"].astype(np.int64)
    return Chunks(data, sizes, decoded_bytes, table["records"], headers["data_hash"])
