"""A reader of a run of records of an ArrayRecord file, which checks each record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import ChunkRange as StoredChunks
from gristmill.dataset.arrayrecord.footer import chunk_ranges, read_bytes, walk_chunks
from gristmill.dataset.base.errors import CorruptRecordError, CorruptShardError
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.shards.open_shard import OpenShard, open_shard
from gristmill.transforms.sources.shards.shard_list import ListedShard
from gristmill.transforms.sources.source import SkippedRegions


class ChunkRange(NamedTuple):
    """Chunks [first_chunk, last_chunk) of a shard."""

    shard: ListedShard
    first_chunk: int
    last_chunk: int

    @property
    def path(self) -> str:
        """The shard's path."""
        return self.shard.path

    def batches(self) -> Iterator[RecordBatch]:
        """Yields the records; their places are their numbers.

        Raises:
            CorruptShardError: The shard or its index is damaged.
        """
        opened = open_shard(self.shard)
        ends = opened.first_records[[self.first_chunk, self.last_chunk]]
        yield from ShardRange(opened, *ends.tolist()).batches()


def cut_at_chunks(shard: ListedShard, range_bytes: int) -> Iterator[ChunkRange]:
    """Yields the ranges of a shard.

    Args:
        shard: The file.
        range_bytes: Approximate bytes of each range.

    Raises:
        CorruptShardError: The shard is missing or damaged.
    """
    footer = open_shard(shard).footer
    for first, last in chunk_ranges(footer, range_bytes=range_bytes):
        yield ChunkRange(shard, first, last)


class ShardRange:
    """Reads records [first, stop) of a shard, in order.

    Memory: 1 MiB of the file (up to 4 MiB decoded), or one chunk if that is larger, and
    the data read ahead from object storage.

    Args:
        opened: The shard.
        first: The first record.
        stop: The record after the last.
        skipped: Takes damaged chunks; None makes them errors.
    """

    def __init__(
        self,
        opened: OpenShard,
        first: int,
        stop: int,
        *,
        skipped: SkippedRegions | None = None,
    ):
        self._opened = opened
        self._first, self._stop = first, stop
        self._skipped = skipped

    def open(self, *, wait: bool = True) -> BinaryIO:
        """Opens the file where the first chunk begins."""
        opened, offsets = self._opened, self._opened.footer.chunk_offsets
        return storage_for(opened.shard.path).open(
            opened.shard.path,
            offset=int(offsets[opened.chunk_of(self._first)]),
            end=int(offsets[opened.chunk_of(self._stop - 1) + 1]),
            version=opened.version,
            wait=wait,
        )

    def batches(self, file: BinaryIO | None = None) -> Iterator[RecordBatch]:
        """Yields the good records, about a mebibyte at a time.

        Args:
            file: The result of `open`; by default it is called here.

        Raises:
            CorruptShardError: A chunk is damaged, and there is no `skipped`.
            StorageChangedError: The file was replaced meanwhile.
        """
        if self._first >= self._stop:
            return
        opened = self._opened
        with self.open() if file is None else file as reading:
            for chunks in walk_chunks(
                reading,
                opened.footer,
                path=opened.shard.path,
                first_chunk=opened.chunk_of(self._first),
                last_chunk=opened.chunk_of(self._stop - 1) + 1,
            ):
                yield from map(self._trimmed, self._good(chunks))

    def _trimmed(self, batch: RecordBatch) -> RecordBatch:
        """Returns the records of a batch that are in the range."""
        places = batch.places
        before = max(self._first - places[0], 0)
        after = max(places[-1] + 1 - self._stop, 0)
        if not before and not after:
            return batch
        chosen = slice(before, len(places) - after)
        return RecordBatch(places[chosen], batch.records[chosen], batch.crc32cs[chosen])

    def _good(
        self, chunks: StoredChunks, *, again: bool = False
    ) -> Iterator[RecordBatch]:
        """Yields the records of chunks that are not damaged."""
        try:
            yield from self._decoded(chunks)
        except CorruptShardError:
            # It may have been damaged in transit: a bucket gives no checksum for a part
            # of an object. Data that are good the second time are used.
            if not again and storage_for(chunks.path).remote:
                yield from self._good(self._fetched(chunks), again=True)
                return
            if self._skipped is None:
                raise
            for chunk in _one_by_one(chunks):
                try:
                    yield from self._decoded(chunk)
                except CorruptShardError as error:
                    self._skip(self._skipped, chunk, error)

    def _skip(
        self,
        skipped: SkippedRegions,
        chunk: StoredChunks,
        error: CorruptShardError,
    ) -> None:
        first = chunk.first_record
        if first < self._first:  # It belongs to the range before.
            skipped.passed += 1
            return
        edges = self._opened.footer.chunk_offsets[[chunk.first_chunk, chunk.last_chunk]]
        begin, end = np.minimum(edges, self._opened.shard.size_bytes).tolist()
        damage = CorruptRecordError(**error.facts())
        damage.reason, damage.detail = "chunk", error.got or error.what
        skipped.add(
            damage,
            chunk.path,
            region=(begin, end),
            rows=(first, first + int(chunk.chunk_records.sum())),
        )

    def _decoded(self, chunks: StoredChunks) -> list[RecordBatch]:
        """Returns all records of chunks; empty if they have none."""
        crc32cs = self._opened.crc32cs
        records = chunks.decode(hashed=crc32cs is None)
        found = list(map(google_crc32c.value, records))
        if crc32cs is not None:
            _check(chunks, found, crc32cs)
        if not records:
            return []
        first = chunks.first_record
        return [RecordBatch(range(first, first + len(records)), records, found)]

    def _fetched(self, chunks: StoredChunks) -> StoredChunks:
        """Returns chunks that were fetched once more."""
        offsets = self._opened.footer.chunk_offsets
        begin, end = offsets[[chunks.first_chunk, chunks.last_chunk]].tolist()
        with storage_for(chunks.path).open(
            chunks.path, offset=begin, end=end, version=self._opened.version
        ) as file:
            data = read_bytes(file, end - begin)
        return dataclasses.replace(chunks, data=data)


def _one_by_one(chunks: StoredChunks) -> Iterator[StoredChunks]:
    """Yields each chunk of a range as its own range."""
    footer = chunks.footer
    offsets = footer.chunk_offsets - footer.chunk_offsets[chunks.first_chunk]
    record = chunks.first_record
    for chunk in range(chunks.first_chunk, chunks.last_chunk):
        data = chunks.data[offsets[chunk] : offsets[chunk + 1]]
        yield dataclasses.replace(
            chunks,
            first_chunk=chunk,
            last_chunk=chunk + 1,
            first_record=record,
            data=data,
        )
        record += int(footer.chunk_records[chunk])


def _check(
    chunks: StoredChunks, found: Sequence[int], crc32cs: npt.NDArray[np.uint32]
) -> None:
    got = np.array(found, np.uint32)
    expected = crc32cs[chunks.first_record : chunks.first_record + len(got)]
    if np.array_equal(expected, got):
        return
    at = int(np.flatnonzero(expected != got)[0])
    raise CorruptShardError(
        "record is not the one that was written",
        where=f"{chunks.path}, record {chunks.first_record + at:,}",
        expected=f"crc32c {expected[at]:#010x}, as in the shard's index",
        got=f"crc32c {got[at]:#010x}",
        cure="restore the shard from a copy, or run the conversion again; "
        "gristmill verify lists all damage",
    )
