"""A reader of one range of a stream: its records, and the part that it covered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.damage import DamageHandler
from gristmill.transforms.sources.formats import TFRECORD, SourceSpec
from gristmill.transforms.sources.range_reader import RangeReader, ReadRequest
from gristmill.transforms.sources.record_source import PartCount, Source
from gristmill.transforms.sources.streams.stream_pass import StreamPass
from gristmill.transforms.sources.streams.stream_reader import OpenReader


class StreamRange(RangeReader[BinaryIO]):
    """Reads the good records of one range of an input file, in order.

    Args:
        request: The range.
        open_reader: Opens the reader of the file's format.
        lookback_bytes: As in `StreamReader`.
        sure: Whether a search for the first record cannot go wrong.
    """

    def __init__(
        self,
        request: ReadRequest,
        open_reader: OpenReader,
        *,
        lookback_bytes: int = 0,
        sure: bool = False,
    ):
        super().__init__(request)
        file, source, first_place = request.file, request.source, request.first_place
        self._plain = file.compression == "none"
        self._open_reader = open_reader
        self._sure = sure
        self._exact = source.exact or first_place is not None
        begin = source.begin_bytes if first_place is None else first_place
        if not self._exact:
            begin = max(0, begin - lookback_bytes)
        self._begin = begin if self._plain else 0
        places = {*request.cuts, source.begin_bytes, source.end_bytes} - {0, -1}
        self._marks = () if self._plain else tuple(sorted(places))

    def _begin_open(self) -> Callable[[], BinaryIO]:
        opened = self._open(wait=False)  # Fetches by itself.
        return lambda: opened

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
        """Yields the good records, those of one block at a time; see `RangeReader`."""
        reading: StreamPass | None = None
        if self._kept is not None:
            reading = self._kept.take(self._source)
        if reading is None:
            reading = StreamPass(
                self._file,
                self._coming(),
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
        self._check_unchanged()

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


class StreamSource(Source):
    """A format that is read forward; see `Source` for its methods.

    Args:
        spec: How records are made.
        open_reader: Opens the reader of a stream.
        lookback_bytes: As in `StreamReader`.
        sure: As for `StreamRange`.
    """

    def __init__(
        self,
        spec: SourceSpec,
        open_reader: OpenReader,
        *,
        lookback_bytes: int = 0,
        sure: bool = False,
    ):
        super().__init__(spec)
        self._open_reader = open_reader
        self._lookback_bytes = lookback_bytes
        self._sure = sure

    def reader(self, request: ReadRequest) -> StreamRange:
        """Returns a reader of one range of a file."""
        return StreamRange(
            request,
            self._open_reader,
            lookback_bytes=self._lookback_bytes,
            sure=self._sure,
        )

    def counted(self, request: ReadRequest, stride_records: int) -> PartCount:
        """Counts the good records of a part of a file, by reading it."""
        reader = self.reader(request)
        plain = request.file.compression == "none"
        offsets: list[int] = []
        records = 0
        for batch in reader.batches():
            if plain or not records:
                begins = batch.places[-records % stride_records :: stride_records]
                offsets += begins if plain else begins[:1]
            records += len(batch.records)
        span = reader.span
        if span.start_bytes is None or span.stop_bytes is None:
            return PartCount(None, 0, 0, ())
        return PartCount(span.start_bytes, span.stop_bytes, records, offsets)

    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""
        if self.spec == TFRECORD:
            return {}
        return {"format": self.spec.format, "record": self.spec.record}
