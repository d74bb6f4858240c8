"""ArrayRecord files as a source: cut at their chunks, counted from their footers."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import (
    ChunkRange,
    chunk_ranges,
    read_bytes,
    walk_chunks,
)
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, StoredShard
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptRecordError, CorruptShardError
from gristmill.dataset.base.places import Int64, Places
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.shards.open_shard import (
    OpenShard,
    open_shard,
)
from gristmill.transforms.sources.shards.source_split import (
    BoolArray,
    SourceSplit,
    selected_records,
)
from gristmill.transforms.sources.source import (
    RangeReader,
    ReadRequest,
    Source,
)


class ShardRangeReader(RangeReader[tuple[OpenShard, BinaryIO | None]]):
    """Reads the records of the chunks that begin in a range of a file.

    Memory: 1 MiB of the file (up to 4 MiB decoded), or one chunk if that is larger, and
    the data read ahead from object storage.
    """

    def __init__(
        self,
        request: ReadRequest,
        dataset_chars: int,
        selected: Callable[[], BoolArray | None] = lambda: None,
    ):
        super().__init__(request)
        self._selected = selected
        self._dataset_chars = dataset_chars
        self._opened: OpenShard | None = None
        self._chunks = 0, 0
        self._start = self._stop = 0

    def _open(self) -> tuple[OpenShard, BinaryIO | None]:
        """Opens the shard, and the file where the chunks begin, if there are any."""
        rebuild = self._skipped is not None
        opened = open_shard(self._file, self._dataset_chars, rebuild=rebuild)
        self._opened = opened
        offsets = opened.footer.chunk_offsets
        first = opened.chunks_before(self._source.begin_bytes)
        # Chunks that were cut off are lost with the last range.
        last = len(offsets) - 1
        if self._end_bytes < self._file.size_bytes:
            last = opened.chunks_before(self._end_bytes)
        self._chunks = first, last
        self._start, self._stop = opened.first_records[[first, last]].tolist()
        if self._start == self._stop:
            return opened, None
        begin, end = offsets[[first, last]].tolist()
        return opened, opened.file.open(begin, end, wait=False)

    @property
    def stored_places(self) -> Places | None:
        return None if self._opened is None else self._opened.places

    def batches(self) -> Iterator[RecordBatch]:
        with self._told_to_skip():
            yield from self.good()

    def good(self) -> Iterator[RecordBatch]:
        """Yields the records as `batches` does; its errors name no option."""
        try:
            opened, file = self._coming()
        except CorruptShardError as error:
            if self._skipped is None:
                raise
            # Without a readable footer, the range is lost.
            begin, end = self._source.begin_bytes, self._end_bytes
            self._whole = end == self._file.size_bytes
            if begin < end:
                self._leave_out(error, "footer", region=(begin, end))
            return
        if file is not None:
            first, last = self._chunks
            with file:
                for chunks in walk_chunks(
                    file,
                    opened.footer,
                    path=self.path,
                    first_chunk=first,
                    last_chunk=last,
                ):
                    for batch in self._good(opened, chunks):
                        self._records += len(batch.records)
                        yield batch
        self._whole = self._stop == opened.records
        self._check_unchanged()

    def _good(
        self, opened: OpenShard, chunks: ChunkRange, *, again: bool = False
    ) -> Iterator[RecordBatch]:
        """Yields the records of chunks that are not damaged."""
        try:
            yield from _decoded(opened, chunks)
        except CorruptShardError:
            # It may have been damaged in transit: a bucket gives no checksum for a part
            # of an object. Data that are good the second time are used.
            if not again and self._file.remote:
                yield from self._good(opened, _fetched(opened, chunks), again=True)
                return
            if self._skipped is None:
                raise
            for chunk in _one_by_one(chunks):
                try:
                    yield from _decoded(opened, chunk)
                except CorruptShardError as error:
                    end_bytes = opened.file.size_bytes
                    region = np.minimum(_edges(chunk), end_bytes).tolist()
                    first = chunk.first_record
                    rows = first, first + int(chunk.chunk_records.sum())
                    self._leave_out(error, "chunk", region=region, rows=rows)

    def taken(self, batch: RecordBatch) -> RecordBatch:
        if (selected := self._selected()) is None or not batch.records:
            return batch
        taken = selected[np.asarray(batch.places)]
        crc32cs = np.array(batch.crc32cs, np.uint32)
        lengths = np.fromiter(map(len, batch.records), np.int64, len(taken))
        self.left_out += RecordsDigest.of(crc32cs[~taken], lengths[~taken])
        rows = np.flatnonzero(taken).tolist()
        return RecordBatch(
            [batch.places[row] for row in rows],
            [batch.records[row] for row in rows],
            [batch.crc32cs[row] for row in rows],
        )

    def copy(
        self, copier: ShardWriter, options: WriterOptions
    ) -> tuple[RecordsDigest, Int64] | None:
        with self._told_to_skip():
            return self._copy(copier, options)

    def _copy(
        self, copier: ShardWriter, options: WriterOptions
    ) -> tuple[RecordsDigest, Int64] | None:
        opened, file = self._coming()
        if file is None:
            self._whole = self._stop == opened.records
            return RecordsDigest(), np.zeros(0, np.int64)
        with file:
            footer = opened.footer
            wanted = options.group_size, options.compression
            found = footer.options
            if (found.group_size, found.compression) != wanted:
                return None
            stored = StoredShard(
                path=self.path,
                footer=footer,
                crc32cs=opened.crc32cs,
                open=lambda begin, end: nullcontext(file),
            )
            taken = self._selected()
            if taken is None:
                taken = np.ones(opened.records, np.bool_)
            first, stop = opened.first_records[[*self._chunks]].tolist()
            taken = taken[first:stop]
            crc32cs, lengths = copier.copy(stored, first, taken)
            digest = RecordsDigest.of(crc32cs, lengths)
            self.left_out = RecordsDigest.of(crc32cs[~taken], lengths[~taken])
        self._records = digest.records
        self._whole = self._stop == opened.records
        self._check_unchanged()
        return digest, first + np.flatnonzero(taken)

    @contextmanager
    def _told_to_skip(self) -> Iterator[None]:
        try:
            yield
        except CorruptShardError as error:
            if self._skipped is None:
                error.add_cure("or keep what can be read with --on-corrupt skip")
            raise

    def _leave_out(self, error: CorruptShardError, reason: str, **place: Any) -> None:
        """Notes damage as left out; `place` is as for `SkippedRegions.add`."""
        assert self._skipped is not None
        damage = CorruptRecordError(**error.facts())
        damage.reason, damage.detail = reason, error.got or error.what
        self._skipped.add(damage, self.path, **place)


def _edges(chunks: ChunkRange) -> Int64:
    """Returns where chunks begin, and where they end."""
    offsets: Int64 = chunks.footer.chunk_offsets
    return offsets[[chunks.first_chunk, chunks.last_chunk]]


def _fetched(opened: OpenShard, chunks: ChunkRange) -> ChunkRange:
    """Returns chunks that were fetched once more."""
    begin, end = _edges(chunks).tolist()
    with opened.file.open(begin, end) as file:
        return dataclasses.replace(chunks, data=read_bytes(file, end - begin))


def _decoded(opened: OpenShard, chunks: ChunkRange) -> list[RecordBatch]:
    """Returns all records of chunks; empty if they have none."""
    crc32cs = opened.crc32cs
    records = chunks.decode(hashed=crc32cs is None)
    found = list(map(google_crc32c.value, records))
    if crc32cs is not None:
        _check(chunks, found, crc32cs)
    if not records:
        return []
    first = chunks.first_record
    return [RecordBatch(range(first, first + len(records)), records, found)]


def _one_by_one(chunks: ChunkRange) -> Iterator[ChunkRange]:
    """Yields each chunk of a range as its own range."""
    return walk_chunks(
        io.BytesIO(chunks.data),
        chunks.footer,
        path=chunks.path,
        first_chunk=chunks.first_chunk,
        last_chunk=chunks.last_chunk,
        range_bytes=0,
    )


def _check(
    chunks: ChunkRange, found: Sequence[int], crc32cs: npt.NDArray[np.uint32]
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


class ArrayRecordSource(Source):
    """ArrayRecord files; see `Source` for the methods."""

    place_noun = "record"

    def __init__(self, spec: SourceSpec):
        super().__init__(spec)
        self._split = SourceSplit.of_spec(spec) if spec.of_dataset else None
        self._dataset_chars = 0 if self._split is None else len(self._split.directory)

    def read(self, request: ReadRequest) -> ShardRangeReader:
        shard = request.source.file_index
        selected = functools.partial(selected_records, self.spec, shard)
        return ShardRangeReader(request, self._dataset_chars, selected)

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin and end at chunks."""
        footer = open_shard(file, self._dataset_chars).footer
        ranges = list(chunk_ranges(footer, range_bytes=range_bytes))
        firsts = [first for first, _ in ranges[1:]]
        edges = footer.chunk_offsets[firsts].tolist()
        yield from itertools.pairwise([0, *edges, file.size_bytes])

    def described(self) -> dict[str, Any]:
        if self._split is None:
            return {"format": self.spec.format}
        names = ("split", "shards_digest")
        return {"format": self.spec.format} | {
            name: getattr(self._split, name) for name in names
        }

    def features(self) -> dict[str, Any] | None:
        """Returns the features of the records, from their dataset."""
        return None if self._split is None else self._split.features
