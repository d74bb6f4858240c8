"""Reading one range of an input file: its frames, and what of the file it covered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import BinaryIO

from gristmill.dataset.errors import (
    CorruptFrameError,
    CorruptStreamError,
    FalseStartError,
    StorageChangedError,
)
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.base import changed_error
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.prefetch_reader import BLOCK_BYTES
from gristmill.dataset.tfrecord.frame_reader import FrameReader
from gristmill.dataset.tfrecord.frames import FrameBatch
from gristmill.dataset.tfrecord.inflated_stream import InflatedStream
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler
from gristmill.transforms.sources.input_files import InputFile

_BLOCK_BYTES = 4 << 20
_CHECK_BYTES = 1 << 16


class RangeReader:
    """Reads the good frames of one range of an input file, in order.

    Args:
        file: The file.
        source: The range.
        on_damage: Takes damaged regions; None makes them errors.
        first_frame_bytes: Where the first frame of a range that is not exact begins,
            if that is known: it is not searched for then.
    """

    def __init__(
        self,
        file: InputFile,
        source: SourceRange,
        *,
        on_damage: DamageHandler | None = None,
        first_frame_bytes: int | None = None,
    ):
        self.path = file.path
        self._file = file
        # Offsets in a compressed file say nothing of those of its frames.
        self._plain = file.compression == "none"
        self._source = source
        self._on_damage = on_damage
        self._exact = source.exact or first_frame_bytes is not None
        begin = source.begin_bytes if first_frame_bytes is None else first_frame_bytes
        self._begin = begin if self._plain else 0
        self._opened: BinaryIO | None = None
        self.ahead_bytes = 0
        self._doubted = -1  # Where something seemed to be damaged last.
        self._intact = False  # Known of a compressed file.
        self._lost = False  # The rest of a compressed file.
        self._start: int | None = None
        self._stop: int | None = None
        self._whole = False
        self._records = 0

    @property
    def span(self) -> SourceSpan:
        """What was read: complete once all frames were read."""
        return SourceSpan(
            file_index=self._source.file_index,
            begin_bytes=self._source.begin_bytes,
            end_bytes=self._source.end_bytes,
            start_bytes=self._start,
            stop_bytes=self._stop,
            records=self._records,
            whole=self._whole,
        )

    def open_ahead(self) -> int:
        """Begins to fetch the range if the storage is remote.

        Returns:
            How many bytes at most wait in memory.
        """
        if storage_for(self.path).remote:
            self._opened = self._open_range(wait=False)
            source = self._source
            end = self._file.size_bytes if source.end_bytes < 0 else source.end_bytes
            self.ahead_bytes = min(end - source.begin_bytes, BLOCK_BYTES)
        return self.ahead_bytes

    def _open_range(self, *, wait: bool = True) -> BinaryIO:
        end = self._source.end_bytes
        return self._open(
            self._begin, end if self._plain and end >= 0 else None, wait=wait
        )

    def _open(
        self, offset: int = 0, end: int | None = None, *, wait: bool = True
    ) -> BinaryIO:
        return storage_for(self.path).open(
            self.path, offset=offset, end=end, version=self._file.version, wait=wait
        )

    def _inflated(self, file: BinaryIO) -> InflatedStream:
        return InflatedStream(file, path=self.path, compression=self._file.compression)

    def batches(self) -> Iterator[FrameBatch]:
        """Yields the good frames, those of one block at a time.

        Raises:
            CorruptFrameError: The range is damaged, and there is no `on_damage`.
            FalseStartError: The range, entered by search, seems to be damaged.
            StorageChangedError: The file was written meanwhile.
        """
        yield from self._batches()
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        storage = storage_for(self.path)
        _, size_bytes, version, _, noted_ns = self._file
        # An object is read by its version. A local file can be written in place: then a
        # part of what was read is old, and every checksum is right.
        if version is None or storage.remote:
            return
        found = storage.stat(self.path)
        if found is None or (found.size_bytes, found.version) != (size_bytes, version):
            raise changed_error(
                self.path,
                expected=f"{version}, {size_bytes:,} bytes",
                got=f"{found.version}, {found.size_bytes:,} bytes" if found else "",
                what="file was written again while it was read",
            )
        if noted_ns and found.noted_ns != noted_ns:
            raise StorageChangedError(
                "file changed while it was read, its size and time did not",
                where=self.path,
                expected="no change noted by the system (ctime)",
                got="one: other content, permissions or links",
                cure="run the same command again: it compares the records that "
                "finished shards were made of, and keeps the shards if they are the "
                "same",
            )

    def _batches(self) -> Iterator[FrameBatch]:
        source = self._source
        end = None if source.end_bytes < 0 else source.end_bytes
        with self._opened or self._open_range() as file:
            reader = FrameReader(
                file if self._plain else self._inflated(file),
                path=self.path,
                offset=self._begin,
                size_bytes=self._file.size_bytes if self._plain else None,
            )
            if not self._exact and not reader.resync(limit=end):
                return
            if end is not None and reader.offset >= end and not source.extra_records:
                return
            extra = self._skip(reader, end)
            self._start = reader.offset
            for limit, records in ((end, sys.maxsize), (None, extra)):
                for batch in self._good(reader, limit, records, self._on_damage):
                    self._records += len(batch.records)
                    yield batch
            self._stop = reader.offset
            # Asked of compressed files only: their size tells nothing.
            at_end = self._lost or reader.at_end()
            self._whole = not self._plain and end is None and at_end

    def _skip(self, reader: FrameReader, end: int | None) -> int:
        """Passes over what is to be skipped; returns the extra records left then."""
        # What is damaged there belongs to the range before.
        handler = None if self._on_damage is None else DamageHandler()
        skip = self._source.skip_records
        for batch in self._good(reader, end, skip, handler):
            skip -= len(batch.records)
        for _ in self._good(reader, None, skip, handler):
            pass
        return self._source.extra_records - skip

    def _good(
        self,
        reader: FrameReader,
        end: int | None,
        limit_records: int,
        handler: DamageHandler | None,
    ) -> Iterator[FrameBatch]:
        """Yields good frames, at most so many, that begin before `end`."""
        while not self._lost:
            try:
                for batch in reader.batches(end, limit_records=limit_records):
                    limit_records -= len(batch.records)
                    yield batch
            except CorruptFrameError as error:
                if not self._exact:
                    raise FalseStartError(str(error)) from error
                if self._read_again(reader):
                    continue
                if handler is None:
                    raise
                self._pass_damage(reader, error, handler)
            else:
                return

    def _read_again(self, reader: FrameReader) -> bool:
        """Lets the reader read once more what seems to be damaged.

        It may have been damaged in transit: a bucket gives no checksum of a part of an
        object. What is good the second time is used.
        """
        offset = reader.offset
        if offset == self._doubted or not storage_for(self.path).remote:
            return False
        self._doubted = offset
        if self._plain:
            reader.restart(self._open(offset, max(offset, self._source.end_bytes)))
            return True
        stream = self._inflated(self._open())
        try:
            while offset and (piece := stream.read(min(offset, _CHECK_BYTES))):
                offset -= len(piece)
        except CorruptStreamError:
            return False
        reader.restart(stream)
        return True

    def _pass_damage(
        self, reader: FrameReader, error: CorruptFrameError, handler: DamageHandler
    ) -> None:
        begin = self._lost_from(error.offset)
        if begin is not None:
            handler.begin(error, self.path, compressed_begin_bytes=begin)
            with self._open(begin) as file:
                while piece := file.read(_BLOCK_BYTES):
                    handler.add(piece)
            handler.end(self._file.size_bytes)
            self._lost = True
            return
        handler.begin(error, self.path)
        # A record with a good length ends where it says, unless bytes were lost or
        # inserted in it: then no frame begins there.
        if error.end is not None and reader.frame_at(error.end):
            reader.skip(error.end, handler.add)
        else:
            reader.skip(error.offset + 1, handler.add)
            reader.resync(sink=handler.add)
        handler.end(reader.offset)

    def _lost_from(self, offset: int) -> int | None:
        """Tells whether a compressed file can be read on behind damage.

        Where the compression is intact, the records were damaged before: the frames
        behind are good. Otherwise nothing behind can be trusted, not even a frame
        whose checksums fit: a damaged stream often repeats earlier data.

        Returns:
            None if it can be read on, else about where `offset` is in the file as it
            is stored, not behind it.
        """
        if self._plain or self._intact:
            return None
        with self._open() as file:
            stream = self._inflated(file)
            position = begin = 0
            try:
                while data := stream.read(_CHECK_BYTES):
                    position += len(data)
                    if position <= offset:
                        begin = stream.compressed_offset
            except CorruptStreamError:
                return begin
        self._intact = True
        return None


def find_first_frame(
    file: InputFile, offset: int, *, on_damage: DamageHandler | None = None
) -> int:
    """Returns where the first frame at or after an offset begins, without a search.

    Goes frame by frame from the beginning of the file, some ten times as fast as
    shards are made. What is damaged on the way is passed over as `on_damage` says.

    Args:
        file: The file, not compressed.
        offset: The offset.
        on_damage: Takes damaged regions; None makes them errors.

    Raises:
        CorruptFrameError: The file is damaged before `offset`, and there is no
            `on_damage`.
    """
    before = SourceRange(file_index=0, begin_bytes=0, end_bytes=offset, exact=True)
    reader = RangeReader(file, before, on_damage=on_damage)
    for _ in reader.batches():
        pass
    return reader.span.stop_bytes or 0
