"""A reader of one range of a stream: its records, and the part that it covered."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.prefetch_reader import BLOCK_BYTES
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler
from gristmill.transforms.sources.forward_pass import KeptPass
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.protocol import span_of
from gristmill.transforms.sources.streams.stream_pass import StreamPass
from gristmill.transforms.sources.streams.stream_reader import OpenReader
from gristmill.transforms.sources.unchanged import check_unchanged


class StreamRange:
    """Reads the good records of one range of an input file, in order.

    Args:
        file: The file.
        source: The range.
        open_reader: Opens the reader of the file's format.
        lookback_bytes: As in `StreamReader`.
        sure: Whether a search for the first record cannot go wrong.
        on_damage: Takes damaged regions; None makes them errors.
        first_place: Where the first record of a range that is not exact begins, if
            known, to avoid a search.
        cuts: All places where a compressed file is cut, in bytes as stored.
        kept: Holds the pass of an earlier range in a compressed file, and takes that of
            this one. By default the file is read from its start.
    """

    def __init__(
        self,
        file: InputFile,
        source: SourceRange,
        open_reader: OpenReader,
        *,
        lookback_bytes: int = 0,
        sure: bool = False,
        on_damage: DamageHandler | None = None,
        first_place: int | None = None,
        cuts: Sequence[int] = (),
        kept: KeptPass | None = None,
    ):
        self.path = file.path
        self._file = file
        self._plain = file.compression == "none"
        self._source = source
        self._on_damage = on_damage
        self._open_reader = open_reader
        self._sure = sure
        self._exact = source.exact or first_place is not None
        begin = source.begin_bytes if first_place is None else first_place
        if not self._exact:
            begin = max(0, begin - lookback_bytes)
        self._begin = begin if self._plain else 0
        places = {*cuts, source.begin_bytes, source.end_bytes} - {0, -1}
        self._marks = () if self._plain else tuple(sorted(places))
        self._kept = kept
        self._opened: BinaryIO | None = None
        self.ahead_bytes = 0
        self._start: int | None = None
        self._stop: int | None = None
        self._whole = False
        self._records = 0

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
            Returns the maximum number of bytes that wait in memory.
        """
        goes_on = self._kept is not None and self._kept.has(self._source)
        if storage_for(self.path).remote and not goes_on:
            self._opened = self._open(wait=False)
            source = self._source
            end = self._file.size_bytes if source.end_bytes < 0 else source.end_bytes
            self.ahead_bytes = min(end - source.begin_bytes, BLOCK_BYTES)
        return self.ahead_bytes

    @property
    def _end(self) -> int | None:
        """Where to stop reading a plain file, None if not known."""
        end = self._source.end_bytes
        return end if self._plain and end >= 0 else None

    def _open(self, *, wait: bool = True) -> BinaryIO:
        return storage_for(self.path).open(
            self.path,
            offset=self._begin,
            end=self._end,
            version=self._file.version,
            wait=wait,
        )

    def batches(self) -> Iterator[RecordBatch]:
        """Yields the good records, one block at a time.

        Raises:
            CorruptRecordError: The range is damaged, and there is no `on_damage`.
            FalseStartError: The range, entered by search, seems to be damaged.
            StorageChangedError: The file was written meanwhile.
        """
        reading: StreamPass | None = None
        if self._kept is not None:
            reading = self._kept.take(self._source)
        if reading is None:
            reading = StreamPass(
                self._file,
                self._opened or self._open(),
                self._open_reader,
                begin=self._begin,
                end=self._end,
                searched=not self._exact and not self._sure,
                marks=self._marks,
            )
        try:
            yield from self._batches(reading)
        except BaseException:
            reading.close()
            raise
        if self._kept is None or self._plain or self._source.end_bytes < 0:
            reading.close()
        else:
            self._kept.keep(reading, self._source)
        check_unchanged(self._file)

    def _batches(self, reading: StreamPass) -> Iterator[RecordBatch]:
        source, reader = self._source, reading.reader
        end = reading.place(source.end_bytes)
        if not self._exact and not reader.resync(limit=self._end):
            return
        passed = self._end is not None and reader.offset >= self._end
        if passed and not source.extra_records:
            return
        extra = self._skip(reading)
        self._start = reader.offset
        for limit, records in ((end, sys.maxsize), (None, extra)):
            for batch in reading.good(
                limit, limit_records=records, on_damage=self._on_damage
            ):
                self._records += len(batch.records)
                yield batch
        self._stop = reader.offset
        # Asked of compressed files only: their size tells nothing.
        self._whole = (
            not self._plain
            and source.end_bytes < 0
            and (reading.lost or reader.at_end())
        )

    def _skip(self, reading: StreamPass) -> int:
        """Skips records; returns the extra records left."""
        source = self._source
        # Damage there belongs to the previous range.
        handler = None if self._on_damage is None else DamageHandler()
        if not self._plain:
            before = reading.place(source.begin_bytes)
            for _ in reading.good(before, on_damage=handler):
                pass
            # Records count from the start of the file; the pass may be far beyond.
            skip = source.skip_records - reading.records
            for _ in reading.good(limit_records=skip, on_damage=handler):
                pass
            return source.extra_records - reading.records
        skip = source.skip_records
        for batch in reading.good(self._end, limit_records=skip, on_damage=handler):
            skip -= len(batch.records)
        for _ in reading.good(limit_records=skip, on_damage=handler):
            pass
        return source.extra_records - skip
