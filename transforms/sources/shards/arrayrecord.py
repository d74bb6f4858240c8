"""ArrayRecord files as a source: cut at their chunks, counted from their footers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from gristmill.dataset.arrayrecord.walk import chunk_ranges
from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.dataset.base.errors import CorruptRecordError, CorruptShardError
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.prefetch_reader import BLOCK_BYTES
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler, stored_pieces
from gristmill.transforms.sources.formats import (
    RecordOptions,
    SourceSpec,
    refuse_record_options,
)
from gristmill.transforms.sources.forward_pass import KeptPass
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.protocol import PartCount, span_of
from gristmill.transforms.sources.shards.open_shard import OpenShard, open_shard
from gristmill.transforms.sources.shards.shard_list import ListedShard
from gristmill.transforms.sources.shards.shard_range import ShardRange
from gristmill.transforms.sources.shards.source_split import SourceSplit
from gristmill.transforms.sources.unchanged import check_unchanged


class _Begun(NamedTuple):
    """A range being read: `file` is None if there is nothing to read."""

    opened: OpenShard
    reading: ShardRange
    file: BinaryIO | None


class ShardRangeReader:
    """Reads the records of the chunks that begin in a range of a file.

    Args:
        shard: The file, with its dataset's entry.
        file: The file as it was listed.
        source: The range.
        on_damage: Takes damaged chunks; None makes them errors.
    """

    def __init__(
        self,
        shard: ListedShard,
        file: InputFile,
        source: SourceRange,
        *,
        on_damage: DamageHandler | None,
    ):
        self.path = file.path
        self.ahead_bytes = 0
        self._shard = shard
        self._file = file
        self._source = source
        self._on_damage = on_damage
        self._coming: Future[_Begun] | None = None
        self._start = self._stop = self._records = 0
        self._whole = False

    @property
    def span(self) -> SourceSpan:
        """The span that was read: complete once all records were read."""
        return span_of(
            self._source,
            start=self._start,
            stop=self._stop,
            records=self._records,
            whole=self._whole,
        )

    def open_ahead(self) -> int:
        """Begins to fetch the range if the storage is remote.

        Returns:
            How many bytes at most wait in memory.
        """
        if storage_for(self.path).remote:
            self._coming = daemon_call(self._begin, thread_name="shard")
            size_bytes = self._source.end_bytes - self._source.begin_bytes
            self.ahead_bytes = min(size_bytes, BLOCK_BYTES)
        return self.ahead_bytes

    def _begin(self) -> _Begun:
        source = self._source
        opened = open_shard(
            self._shard,
            version=self._file.version,
            rebuild=self._on_damage is not None,
        )
        first = opened.records_before(source.begin_bytes) + source.skip_records
        stop = opened.records  # Chunks that were cut off are lost with the last range.
        if source.end_bytes < self._file.size_bytes:
            stop = opened.records_before(source.end_bytes)
        stop += source.extra_records
        first, stop = min(first, opened.records), min(stop, opened.records)
        reading = ShardRange(opened, first, stop, on_damage=self._on_damage)
        file = reading.open(wait=False) if first < stop else None
        self._start, self._stop = first, max(first, stop)
        return _Begun(opened, reading, file)

    def batches(self) -> Iterator[RecordBatch]:
        """Yields the good records, about a mebibyte at a time.

        Raises:
            CorruptShardError: The range is damaged, and there is no `on_damage`.
            StorageChangedError: The file was written meanwhile.
        """
        try:
            begun = self._begin() if self._coming is None else self._coming.result()
        except CorruptShardError as error:
            if self._on_damage is None:
                raise
            self._lose(error, self._on_damage)
            return
        if begun.file is not None:
            for batch in begun.reading.batches(begun.file):
                self._records += len(batch.records)
                yield batch
        self._whole = self._stop == begun.opened.records
        check_unchanged(self._file)

    def _lose(self, error: CorruptShardError, handler: DamageHandler) -> None:
        """Sets aside a range of a file in which nothing can be found."""
        begin, end = self._source.begin_bytes, self._source.end_bytes
        self._whole = end == self._file.size_bytes
        if begin >= end:
            return
        damage = CorruptRecordError(**error.facts())
        damage.reason, damage.offset, damage.end = "footer", begin, end
        damage.detail = error.got or error.what
        handler.begin(damage, self.path)
        for piece in stored_pieces(self.path, self._file.version, begin, end):
            handler.add(piece)
        handler.end(end)


class ArrayRecordSource:
    """ArrayRecord files; see `Source` for the methods.

    Args:
        spec: Names the dataset of the files, if any.
    """

    def __init__(self, spec: SourceSpec):
        self.spec = spec
        self._split = SourceSplit.of_spec(spec)
        self._dataset_chars = 0 if self._split is None else len(self._split.directory)

    def _shard(self, file: InputFile) -> ListedShard:
        return ListedShard(file.path, file.size_bytes, self._dataset_chars)

    def read(
        self,
        file: InputFile,
        source: SourceRange,
        *,
        on_damage: DamageHandler | None = None,
        first_place: int | None = None,
        cuts: Sequence[int] = (),
        kept: KeptPass | None = None,
    ) -> ShardRangeReader:
        """Returns a reader of one range of a file. Nothing has to be searched for."""
        return ShardRangeReader(self._shard(file), file, source, on_damage=on_damage)

    def count(
        self,
        file: InputFile,
        source: SourceRange,
        *,
        stride_records: int,
        on_damage: DamageHandler | None = None,
        first_place: int | None = None,
    ) -> PartCount:
        """Counts the records of a file from its footer, damaged ones too."""
        try:
            opened = open_shard(
                self._shard(file), version=file.version, rebuild=on_damage is not None
            )
        except CorruptShardError:
            if on_damage is None:
                raise
            return PartCount(0, 0, 0, ())
        # Where a record in between begins, a chunk does not: it is skipped to.
        wanted = np.arange(0, opened.records, stride_records)
        chunks = np.searchsorted(opened.first_records, wanted, side="right") - 1
        within = opened.first_records[chunks] != wanted
        known = int(within.argmax()) if within.any() else len(wanted)
        offsets = opened.footer.chunk_offsets[chunks[:known]].tolist()
        return PartCount(0, opened.records, opened.records, offsets)

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
        """Returns the facts about the inputs for `dataset.json`, besides their list."""
        if self._split is None:
            return {"format": self.spec.format}
        names = ("split", "shards_digest")
        return {"format": self.spec.format} | {
            name: getattr(self._split, name) for name in names
        }

    def features(self) -> dict[str, Any] | None:
        """Returns the features of the records, from their dataset."""
        return None if self._split is None else self._split.features

    def place_text(self, place: int) -> str:
        """Returns the name of a place in messages."""
        return f"record {place:,}"


def make_source(spec: SourceSpec) -> ArrayRecordSource:
    """Returns the source of a spec."""
    return ArrayRecordSource(spec)


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns the rules for records: they stay as they are.

    Raises:
        InputError: There are options for columns.
    """
    refuse_record_options(options, "ArrayRecord")
    return SourceSpec(format="arrayrecord")
