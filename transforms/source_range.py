"""Reading one range of an input file: its frames, and what of the file it covered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Protocol

from gristmill.dataset.errors import CorruptInputError
from gristmill.dataset.shard_report import SourceSpan
from gristmill.dataset.storage import storage_for
from gristmill.dataset.tfrecord import (
    Compression,
    CorruptFrameError,
    Frame,
    FrameBatch,
    FrameReader,
    InflatedStream,
)
from gristmill.transforms.shard_plan import SourceRange


class FooledStartError(CorruptInputError):
    """A range that was entered by search met damage, real or not.

    The start may have been a frame inside a record. Only the reader of the range
    before knows: compare with where that one stopped.

    Attributes:
        offset: Where the damage, or the end of the inner frames, is.
    """

    offset: int = 0


class DamageHandler(Protocol):
    """Takes damaged regions of inputs, one after the other."""

    def begin(self, error: CorruptFrameError, path: str) -> None:
        """Called when a region begins. May raise: then reading ends with it."""

    def add(self, data: bytes) -> None:
        """Called with the bytes of the region, in order."""

    def end(self, offset: int) -> None:
        """Called with the offset after the region."""


class RangeReader:
    """Yields the good frames of one range of an input file, in order.

    Args:
        path: The file.
        source: The range.
        compression: How the file is compressed.
        size_bytes: Size of the file as it is stored.
        on_damage: Takes damaged regions; None makes them errors.
        search_from: Where to begin looking for the first frame, if not at the begin
            of the range. Only for ranges that are not exact.
    """

    def __init__(
        self,
        path: str,
        source: SourceRange,
        *,
        compression: Compression = "none",
        size_bytes: int,
        on_damage: DamageHandler | None = None,
        search_from: int | None = None,
    ):
        self._path = path
        self._source = source
        self._compression = compression
        self._size_bytes = size_bytes
        self._on_damage = on_damage
        self._begin = source.begin_bytes if search_from is None else search_from
        self._exact = source.exact
        self._start: int | None = None
        self._stop: int | None = None
        self._whole = False
        self._records = 0

    @property
    def span(self) -> SourceSpan:
        """What was read; to be asked once the frames are used up."""
        return SourceSpan(
            file_index=self._source.file_index,
            begin_bytes=self._source.begin_bytes,
            end_bytes=self._source.end_bytes,
            start_bytes=self._start,
            stop_bytes=self._stop,
            records=self._records,
            whole=self._whole,
        )

    def __iter__(self) -> Iterator[Frame]:
        for batch in self.batches():
            yield from map(Frame, *batch)

    def batches(self) -> Iterator[FrameBatch]:
        """Yields the frames a block at a time, as columns."""
        source = self._source
        plain = self._compression == "none"
        storage = storage_for(self._path)
        offset = self._begin if plain else 0
        with storage.open(self._path, offset=offset) as file:
            stream = (
                file
                if plain
                else InflatedStream(
                    file, path=self._path, compression=self._compression
                )
            )
            reader = FrameReader(
                stream,
                path=self._path,
                offset=offset,
                size_bytes=self._size_bytes if plain else None,
            )
            end = None if source.end_bytes < 0 else source.end_bytes
            if not self._exact and not reader.resync(limit=end):
                return
            if end is not None and reader.offset >= end and not source.extra_records:
                return
            self._start = self._stop = reader.offset
            skip = source.skip_records
            for limited in (False, True):
                # First what begins in the range, then the records beyond its end.
                batches = (
                    self._good_batches(reader, None, source.extra_records)
                    if limited
                    else self._good_batches(reader, end, sys.maxsize)
                )
                for batch in batches:
                    count = len(batch.records)
                    if skip >= count:
                        skip -= count
                        self._start = reader.offset
                        continue
                    if skip:
                        self._start = batch.offsets[skip]
                        batch = FrameBatch(*(column[skip:] for column in batch))
                        skip = 0
                    self._records += len(batch.records)
                    yield batch
            self._stop = reader.offset
            # Asked of compressed files only: their size tells nothing.
            self._whole = not plain and end is None and reader.at_end()

    def _good_batches(
        self, reader: FrameReader, end: int | None, limit_records: int
    ) -> Iterator[FrameBatch]:
        while True:
            try:
                for batch in reader.batches(end, limit_records=limit_records):
                    limit_records -= len(batch.records)
                    yield batch
            except CorruptFrameError as error:
                if not self._exact:
                    fooled = FooledStartError(str(error))
                    fooled.offset = error.offset
                    raise fooled from error
                if self._on_damage is None:
                    raise
                self._pass_damage(reader, error, self._on_damage)
            else:
                return

    def _pass_damage(
        self, reader: FrameReader, error: CorruptFrameError, handler: DamageHandler
    ) -> None:
        handler.begin(error, self._path)
        # A record with a good length ends where it says, unless bytes were lost or
        # inserted in it: then no frame begins there.
        if error.end is not None and reader.frame_at(error.end):
            reader.skip(error.end, handler.add)
        else:
            reader.skip(error.offset + 1, handler.add)
            reader.resync(sink=handler.add)
        handler.end(reader.offset)
