"""The writer of a shard from records of other shards, whose chunks it copies.

A chunk is copied if all its records are taken and the official reader accepts it: that
reader expects the same number of records in every chunk but the last. In shards with
one record per chunk all chunks are copied. In others, those after a removed record are
encoded again, until whole chunks follow each other.

Copied chunks are not decoded, unless no index has the checksums of their records. Their
hashes are compared when they are read, and again in the finished file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import BinaryIO, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.chunk_hash import HashArray
from gristmill.dataset.arrayrecord.chunks import (
    HEADER_DTYPE,
    BoolArray,
    IntArray,
    SimpleChunks,
)
from gristmill.dataset.arrayrecord.file_writer import ArrayRecordWriter, Chunks
from gristmill.dataset.arrayrecord.footer import (
    ChunkRange,
    Footer,
    walk_chunks,
    walk_file,
)
from gristmill.dataset.arrayrecord.shard_writer import (
    WrittenShard,
    check_lengths,
    failures_told,
    finished_file,
    footer_of_file,
    other_records,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptShardError

CrcArray = npt.NDArray[np.uint32]


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


class ShardCopier:
    """Writes records of other shards to a local file, then checks the file.

    Memory: 1 MiB of a shard (up to 4 MiB decoded), or one chunk if that is larger, the
    memory of `ArrayRecordWriter`, and about 30 bytes a record.

    Args:
        path: Local file to create.
        options: Encoding of records that are not copied. Nothing is copied unless its
            group size is that of the source shards.

    Raises:
        StorageError: The file cannot be created.
    """

    def __init__(self, path: str, *, options: WriterOptions):
        self._path = path
        self._group = options.group_size
        self._records = 0
        self._crc32cs = [np.empty(0, np.uint32)]
        self._lengths = [np.empty(0, np.int64)]
        # Of each copied chunk: the number of its first record, and its hash.
        self._copied_records = [np.empty(0, np.int64)]
        self._copied_hashes = [np.empty(0, np.uint64)]
        with failures_told(path):
            self._writer = ArrayRecordWriter(path, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with contextlib.suppress(OSError):
            self._writer.abandon()  # Has no effect on a finished file.

    def copy(
        self,
        shard: StoredShard,
        first_record: int,
        taken: BoolArray,
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
        ends = np.cumsum(footer.chunk_records)
        first = int(np.searchsorted(ends, first_record, side="right"))
        last = int(np.searchsorted(ends, end_record, side="left")) + 1
        if not len(taken):
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        # Whole chunks are read: the records around these are not taken.
        begin = int(ends[first - 1]) if first else 0
        mask = np.zeros(int(ends[last - 1]) - begin, np.bool_)
        mask[first_record - begin : end_record - begin] = taken
        offsets = footer.chunk_offsets
        crc32cs, lengths = [], []
        with shard.open(int(offsets[first]), int(offsets[last])) as file:
            for chunks in walk_chunks(
                file, footer, path=shard.path, first_chunk=first, last_chunk=last
            ):
                at = chunks.first_record - begin
                count = int(chunks.chunk_records.sum())
                part = mask[at : at + count]
                of_chunks = self._take(shard, chunks, part)
                crc32cs.append(of_chunks[0])
                lengths.append(of_chunks[1])
        own = slice(first_record - begin, end_record - begin)
        return np.concatenate(crc32cs)[own], np.concatenate(lengths)[own]

    def _take(
        self,
        shard: StoredShard,
        chunks: ChunkRange,
        taken: BoolArray,
    ) -> tuple[CrcArray, IntArray]:
        """Appends records of a range of chunks.

        Returns the checksums and lengths of all of them.
        """
        encoded = chunks.encoded(hashed=True)
        parsed, lengths = encoded.survey()
        check_lengths(lengths, chunks)
        counts = parsed.records
        firsts = np.cumsum(counts) - counts
        before = np.append(0, np.cumsum(taken))
        kept = before[firsts + counts] - before[firsts]
        if shard.crc32cs is None:
            crc32cs, _ = chunks.encoded().checksum()
        else:
            crc32cs = shard.crc32cs[chunks.first_record :][: len(taken)]
        wanted = np.flatnonzero(kept)
        whole = (kept == counts)[wanted] & (counts == self._group)[wanted]
        starts = encoded.starts
        for run, copied in _runs(wanted, whole):
            rows = np.repeat(firsts[run], counts[run]) + _places(counts[run])
            if copied and self._writer.at_chunk_end:
                stored = _stored(encoded.buffer, starts[run], parsed, run)
                with failures_told(self._path):
                    self._writer.append(stored)
                self._copied_records.append(
                    self._records + np.cumsum(counts[run]) - counts[run]
                )
                self._copied_hashes.append(stored.data_hashes)
            else:
                records = chunks.encoded(run).decode()
                if shard.crc32cs is not None:
                    got = map(google_crc32c.value, records)
                    _compare(
                        shard, chunks, rows, np.fromiter(got, np.uint32, len(rows))
                    )
                chosen = np.flatnonzero(taken[rows])
                rows = rows[chosen]
                with failures_told(self._path):
                    self._writer.write([records[at] for at in chosen.tolist()])
            self._records += len(rows)
            self._crc32cs.append(crc32cs[rows])
            self._lengths.append(lengths[rows])
        return crc32cs, lengths

    def finish(self) -> WrittenShard:
        """Closes the file, reads it back and compares.

        Raises:
            StorageError: The file could not be finished.
            DataLossError: It does not hold the records that were copied.
        """
        with failures_told(self._path):
            self._writer.finish()
        with finished_file(self._path) as file:
            return self._read_back(file)

    def _read_back(self, file: BinaryIO) -> WrittenShard:
        footer, size = footer_of_file(file, self._path)
        crc32cs = np.concatenate(self._crc32cs)
        lengths = np.concatenate(self._lengths)
        copied = np.concatenate(self._copied_records)
        hashes = np.concatenate(self._copied_hashes)
        file_crc = done = 0
        for data, chunks in walk_file(file, footer, path=self._path, size_bytes=size):
            file_crc = google_crc32c.extend(file_crc, data)
            if chunks is None:
                continue
            encoded = chunks.encoded(hashed=True)
            parsed, got = encoded.survey()
            there = slice(chunks.first_record, chunks.first_record + len(got))
            same = np.array_equal(got, lengths[there])
            firsts = chunks.first_record + np.cumsum(parsed.records) - parsed.records
            at = np.searchsorted(copied, firsts)
            is_copied = np.append(copied, -1)[at] == firsts
            stored = _hashes(encoded.buffer, encoded.starts)
            same &= np.array_equal(stored[is_copied], hashes[at[is_copied]])
            others = np.flatnonzero(~is_copied)
            if same and len(others):
                rows = np.repeat(firsts[others], parsed.records[others])
                rows += _places(parsed.records[others])
                crcs, _ = chunks.encoded(others).checksum()
                same = np.array_equal(crcs, crc32cs[rows])
            if not same:
                raise other_records(
                    f"{self._path}, records {there.start:,} to {there.stop:,}",
                    expected="these records as they were copied",
                    got="others",
                )
            done = there.stop
        if done != self._records:
            raise other_records(
                self._path, expected=f"{self._records:,} records", got=f"{done:,}"
            )
        return WrittenShard(
            footer=footer,
            crc32cs=crc32cs,
            digest=RecordsDigest.of(crc32cs, lengths),
            file_bytes=size,
            file_crc32c=file_crc,
        )


def _compare(
    shard: StoredShard, chunks: ChunkRange, rows: IntArray, got: CrcArray
) -> None:
    """Compares the checksums of some records of chunks with those in the index."""
    assert shard.crc32cs is not None
    numbers = chunks.first_record + rows
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


def _places(counts: IntArray) -> IntArray:
    """Returns the numbers 0 to count - 1 for each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _hashes(buffer: bytes | memoryview, starts: IntArray) -> HashArray:
    """Returns uint64 [chunks], the hashes in the headers of chunks."""
    data = np.frombuffer(buffer, np.uint8)
    count = max(0, len(data) - HEADER_DTYPE.itemsize + 1)
    headers = np.ndarray(count, HEADER_DTYPE, data, strides=(1,))
    found: HashArray = headers[starts]["data_hash"]
    return found


def _stored(
    buffer: bytes | memoryview, starts: IntArray, parsed: SimpleChunks, run: IntArray
) -> Chunks:
    """Returns some chunks of a buffer, without the bytes between them."""
    ends = parsed.values.end[run]
    gaps = np.flatnonzero(starts[1:] != ends[:-1])
    begins = starts[np.append(0, gaps + 1)].tolist()
    stops = ends[np.append(gaps, len(ends) - 1)].tolist()
    view = memoryview(buffer)
    pieces = [view[begin:stop] for begin, stop in zip(begins, stops, strict=True)]
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return Chunks(
        data,
        ends - starts,
        parsed.values.decoded_bytes[run],
        parsed.records[run],
        _hashes(buffer, starts),
    )
