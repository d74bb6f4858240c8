"""Damaged chunks of a shard: passed over, or set aside as regions of its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from gristmill.dataset.arrayrecord import walk
from gristmill.dataset.base.errors import CorruptRecordError, CorruptShardError
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.transforms.sources.quarantine import DamageHandler, Rows
from gristmill.transforms.sources.shards.open_shard import OpenShard


class DamagedChunks:
    """The damaged chunks of a range of records; neighbours are one region.

    Args:
        opened: The shard.
        first: The first record of the range. A chunk that begins before it belongs to
            the range before.
        handler: Takes the regions.
    """

    def __init__(self, opened: OpenShard, first: int, handler: DamageHandler):
        self._opened, self._first, self._handler = opened, first, handler
        self._region_end = -1  # Of the chunks that were set aside last.
        self._end_record = 0

    def pass_over(
        self,
        chunks: walk.ChunkRange,
        decode: Callable[[walk.ChunkRange], list[RecordBatch]],
    ) -> Iterator[RecordBatch]:
        """Yields the records of the chunks that can be decoded; sets the others aside.

        Args:
            chunks: The chunks, at least one of them damaged.
            decode: Returns the records of a chunk, or raises CorruptShardError.
        """
        for chunk in _one_by_one(chunks):
            try:
                batches = decode(chunk)
            except CorruptShardError as error:
                self._set_aside(chunk, error)
            else:
                self.end_region()
                yield from batches

    def _set_aside(self, chunk: walk.ChunkRange, error: CorruptShardError) -> None:
        offsets = self._opened.footer.chunk_offsets
        begin, end = offsets[[chunk.first_chunk, chunk.last_chunk]].tolist()
        if chunk.first_record < self._first:
            self._handler.pass_over()
            return
        if self._region_end != begin:
            self.end_region()
            damage = CorruptRecordError(**error.facts())
            damage.reason, damage.offset, damage.end = "chunk", begin, end
            damage.detail = error.got or error.what
            first = chunk.first_record
            self._handler.begin(damage, chunk.path, rows=Rows(first, first, begin))
        self._handler.add(chunk.data)
        self._region_end = end
        self._end_record = chunk.first_record + int(chunk.chunk_records.sum())

    def end_region(self) -> None:
        """Ends the region of the chunks that were set aside last, if any."""
        if self._region_end >= 0:
            size_bytes = self._opened.shard.size_bytes
            end_bytes = min(self._region_end, size_bytes)
            self._handler.end(end_bytes, end_row=self._end_record)
        self._region_end = -1


def _one_by_one(chunks: walk.ChunkRange) -> Iterator[walk.ChunkRange]:
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
