"""ArrayRecord files as a source: cut at their chunks, counted from their footers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from gristmill.dataset.arrayrecord.footer import chunk_ranges
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, StoredShard
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptRecordError, CorruptShardError
from gristmill.dataset.base.places import Int64, Places
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.shards.open_shard import (
    ListedShard,
    OpenShard,
    ShardRange,
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
    SkippedRegions,
    Source,
)


class _Begun(NamedTuple):
    """A range being read: `file` is None if there is nothing to read."""

    opened: OpenShard
    reading: ShardRange
    file: BinaryIO | None


class ShardRangeReader(RangeReader[_Begun]):
    """Reads the records of the chunks that begin in a range of a file."""

    def __init__(
        self,
        request: ReadRequest,
        shard: ListedShard,
        selected: Callable[[], BoolArray | None] = lambda: None,
    ):
        super().__init__(request)
        self._selected = selected
        self._shard = shard
        self._opened: OpenShard | None = None
        self._start = self._stop = 0

    def _open(self) -> _Begun:
        source = self._source
        opened = self._opened = open_shard(
            self._shard,
            version=self._file.version,
            rebuild=self._skipped is not None,
        )
        first = opened.records_before(source.begin_bytes)
        stop = opened.records  # Chunks that were cut off are lost with the last range.
        if source.end_bytes < self._file.size_bytes:
            stop = opened.records_before(source.end_bytes)
        first, stop = min(first, opened.records), min(stop, opened.records)
        reading = ShardRange(opened, first, stop, skipped=self._skipped)
        file = reading.open(wait=False) if first < stop else None
        self._start, self._stop = first, max(first, stop)
        return _Begun(opened, reading, file)

    @property
    def stored_places(self) -> Places | None:
        return None if self._opened is None else self._opened.places

    def batches(self) -> Iterator[RecordBatch]:
        with self._told_to_skip():
            try:
                begun = self._coming()
            except CorruptShardError as error:
                if self._skipped is None:
                    raise
                self._lose(error, self._skipped)
                return
            if begun.file is not None:
                for batch in begun.reading.batches(begun.file):
                    self._records += len(batch.records)
                    yield batch
        self._whole = self._stop == begun.opened.records
        self._check_unchanged()

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
        opened, _, file = self._coming()
        assert self._start is not None  # It is open.
        assert self._stop is not None
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
            taken = taken[self._start : self._stop]
            crc32cs, lengths = copier.copy(stored, self._start, taken)
            digest = RecordsDigest.of(crc32cs, lengths)
            self.left_out = RecordsDigest.of(crc32cs[~taken], lengths[~taken])
        self._records = digest.records
        self._whole = self._stop == opened.records
        self._check_unchanged()
        return digest, self._start + np.flatnonzero(taken)

    @contextmanager
    def _told_to_skip(self) -> Iterator[None]:
        try:
            yield
        except CorruptShardError as error:
            if self._skipped is None:
                error.add_cure("or keep what can be read with --on-corrupt skip")
            raise

    def _lose(self, error: CorruptShardError, skipped: SkippedRegions) -> None:
        """Skips a range of a file without a readable footer."""
        begin, end = self._source.begin_bytes, self._source.end_bytes
        self._whole = end == self._file.size_bytes
        if begin >= end:
            return
        damage = CorruptRecordError(**error.facts())
        damage.reason, damage.detail = "footer", error.got or error.what
        skipped.add(damage, self.path, region=(begin, end))


class ArrayRecordSource(Source):
    """ArrayRecord files; see `Source` for the methods."""

    place_noun = "record"

    def __init__(self, spec: SourceSpec):
        super().__init__(spec)
        self._split = SourceSplit.of_spec(spec) if spec.of_dataset else None
        self._dataset_chars = 0 if self._split is None else len(self._split.directory)

    def _shard(self, file: InputFile) -> ListedShard:
        return ListedShard(file.path, file.size_bytes, self._dataset_chars)

    def open_range(self, request: ReadRequest) -> ShardRangeReader:
        shard = request.source.file_index
        selected = functools.partial(selected_records, self.spec, shard)
        return ShardRangeReader(request, self._shard(request.file), selected)

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin and end at chunks."""
        footer = open_shard(self._shard(file), version=file.version).footer
        ranges = list(chunk_ranges(footer, range_bytes=range_bytes))
        firsts = [first for first, _ in ranges[1:]]
        edges = footer.chunk_offsets[firsts].tolist()
        yield from itertools.pairwise([0, *edges, file.size_bytes])

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether every record of the range was read."""
        del raw_bytes
        if span.start_bytes is None or span.stop_bytes is None:
            return False
        return span.stop_bytes - span.start_bytes == span.records

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
