"""A reader of one range of a stream, which skips damage between good records."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from gristmill.dataset.base.errors import CorruptRecordError, CorruptStreamError
from gristmill.dataset.formats.streams import (
    End,
    InflatedStream,
    RecordBatch,
    StreamReader,
)
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import (
    RangeReader,
    ReadRequest,
    SkippedRegions,
    Source,
)

_CHECK_BYTES = 1 << 16

# Called with a stream, and by name with the path, offset and size of its file.
OpenReader = Callable[..., StreamReader]

WHOLE_FILES = (
    "if it is intact, and its records hold frames of TFRecord themselves, give "
    "--whole-files"
)


class StreamPass:
    """Reads the good records of an input file, in order, from a place on.

    Memory: one block or one record, whichever is larger.

    Args:
        file: The file.
        opened: Its bytes from `begin` on. The pass closes it.
        open_reader: Opens the reader of its format.
        begin: Offset where a plain file is entered; 0 for a compressed file.
        end: Where repeated reading ends, as far as known.
        searched: Whether the first record was searched for, so that apparent damage may
            be a wrong start.
        marks: Offsets in a compressed file that `place` will be asked for, ascending.

    Attributes:
        reader: Reader at the place of the pass.
        lost: Whether the rest of a compressed file cannot be read.
    """

    def __init__(
        self,
        file: InputFile,
        opened: BinaryIO,
        open_reader: OpenReader,
        *,
        begin: int = 0,
        end: int | None = None,
        searched: bool = False,
        marks: Sequence[int] = (),
    ):
        self._file, self._opened = file, opened
        self._end, self._searched, self._marks = end, searched, marks
        # Offsets in a compressed file are not those of its records.
        self._plain = file.compression == "none"
        self._doubted = -1  # The place of the last apparent damage.
        self._intact = False  # Known for compressed files.
        self._inflated = None if self._plain else self._inflating(opened, marks)
        self.lost = False
        self.reader: StreamReader = open_reader(
            opened if self._inflated is None else self._inflated,
            path=file.path,
            offset=begin,
            size_bytes=file.size_bytes if self._plain else None,
        )

    def close(self) -> None:
        """Closes the file."""
        self._opened.close()

    def place(self, stored: int) -> End:
        """Returns the place, among records, of a position in the stored file.

        Args:
            stored: The position; -1 for the end of the file.
        """
        if stored < 0:
            return None
        return stored if self._plain else functools.partial(self._inflated_to, stored)

    def _inflated_to(self, mark: int) -> int | None:
        # Ask the current stream: damage replaces it.
        return self._inflated.inflated_offset(mark) if self._inflated else None

    def good(
        self, end: End = None, *, skipped: SkippedRegions | None
    ) -> Iterator[RecordBatch]:
        """Yields good records that begin before `end`, those of one block at a time.

        Args:
            end: As in `StreamReader.batches`.
            skipped: Takes damaged regions; None makes them errors.

        Raises:
            CorruptRecordError: The file is damaged, and there is no `skipped`.
        """
        while not self.lost:
            try:
                yield from self.reader.batches(end)
            except CorruptRecordError as error:
                if self._read_again():
                    continue
                if skipped is None:
                    if self._searched:
                        error.add_cure(WHOLE_FILES)
                    raise
                self._skip_damage(error, skipped)
            else:
                return

    def _inflating(self, file: BinaryIO, marks: Sequence[int] = ()) -> InflatedStream:
        path, compression = self._file.path, self._file.compression
        return InflatedStream(file, path=path, compression=compression, marks=marks)

    def _read_again(self) -> bool:
        """Lets the reader read apparent damage once more.

        Data can be damaged in transit, as a bucket has no checksum for a part of an
        object.
        """
        offset = self.reader.offset
        if offset == self._doubted or not self._file.remote:
            return False
        self._doubted = offset
        if self._plain:
            end = None if self._end is None else max(offset, self._end)
            self.reader.restart(self._file.open(offset, end))
            return True
        stream = self._inflating(self._file.open(), self._marks)
        try:
            while offset and (piece := stream.read(min(offset, _CHECK_BYTES))):
                offset -= len(piece)
        except CorruptStreamError:
            return False
        self._inflated = stream
        self.reader.restart(stream)
        return True

    def _skip_damage(self, error: CorruptRecordError, skipped: SkippedRegions) -> None:
        reader, path = self.reader, self._file.path
        begin = self._lost_from(error.offset)
        if begin is not None:
            self.lost = True
            rest = begin, self._file.size_bytes
            skipped.add(error, path, region=rest, compressed=True)
            return
        # A record with a good length ends where it says, unless bytes were lost or
        # inserted in it: then no frame begins there.
        if error.end is not None and reader.begins_at(error.end):
            reader.skip(error.end)
        else:
            reader.skip(error.offset + 1)
            reader.resync()
        skipped.add(error, path, region=(error.offset, reader.offset))

    def _lost_from(self, offset: int) -> int | None:
        """Checks whether reading of a compressed file can continue after damage.

        If the compression is intact, the records were damaged before it: later frames
        are good. Otherwise nothing after it can be trusted, not even a frame whose
        checksums fit: a damaged stream often repeats earlier data.

        Returns:
            None if it can continue, else the approximate place of `offset` in the
            stored file, never too far.
        """
        if self._plain or self._intact:
            return None
        with self._file.open() as file:
            stream = self._inflating(file)
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


class StreamRange(RangeReader[BinaryIO]):
    """Reads the good records of one range of an input file, in order."""

    def __init__(self, request: ReadRequest, format: StreamSource):
        super().__init__(request)
        file, source = request.file, request.source
        self._plain = file.compression == "none"
        self._from_start = source.from_start or not self._plain
        self._format, self._sure = format, format.sure
        self._searched = source.cut and source.begin_bytes > 0
        self._cut_after = source.cut and source.end_bytes < file.size_bytes
        lookback_bytes = format.lookback_bytes if self._searched else 0
        begin = max(0, source.begin_bytes - lookback_bytes)
        self._begin = 0 if self._from_start else begin
        places = {*request.cuts, source.begin_bytes, source.end_bytes} - {0, -1}
        self._marks = () if self._plain else tuple(sorted(places))

    def _begin_open(self) -> Callable[[], BinaryIO]:
        opened = self._open(wait=False)  # Fetches by itself.
        return lambda: opened

    @property
    def _end(self) -> int | None:
        """End of reading a plain file, None if not known."""
        end = self._source.end_bytes
        return None if self._from_start or end < 0 else end

    def _open(self, *, wait: bool = True) -> BinaryIO:
        return self._file.open(self._begin, self._end, wait=wait)

    def batches(self) -> Iterator[RecordBatch]:
        reading: StreamPass | None = None
        if self._kept is not None:
            reading = self._kept.take(self._source)
        if reading is None:
            reading = StreamPass(
                self._file,
                self._coming(),
                self._format.open_reader,
                begin=self._begin,
                end=self._end,
                searched=self._searched and not self._sure,
                marks=self._marks,
            )
        try:
            yield from self._batches(reading)
        except BaseException:
            reading.close()
            raise
        if self._kept is None or not self._from_start or self._source.end_bytes < 0:
            reading.close()
        else:
            self._kept.keep(reading, self._source)
        self._check_unchanged()

    def _batches(self, reading: StreamPass) -> Iterator[RecordBatch]:
        source, reader = self._source, reading.reader
        if self._searched and not reader.resync(limit=self._end):
            return
        if self._end is not None and reader.offset >= self._end:
            return
        if self._from_start:
            # Damage there belongs to the range before.
            before = None if self._skipped is None else SkippedRegions()
            for _ in reading.good(reading.place(source.begin_bytes), skipped=before):
                pass
        self._start = reader.offset
        end = reading.place(source.end_bytes)
        for batch in reading.good(end, skipped=self._skipped):
            self._records += len(batch.records)
            yield batch
        self._stop = reader.offset
        if self._cut_after and not self._sure:
            self._stop = self._next_record(reading)
        # Used where the size of a file says nothing.
        self._whole = (
            self._from_start
            and source.end_bytes < 0
            and (reading.lost or reader.at_end())
        )

    def _next_record(self, reading: StreamPass) -> int:
        """Returns the start of the next range, after damage that follows this one."""
        reader = reading.reader
        while not reader.at_end():
            place = reader.offset
            ahead = reading.good(place + 1, skipped=self._skipped)
            if any(batch.records for batch in ahead):
                return place
        return reader.offset


class StreamSource(Source):
    """A format that is read forward; see `Source` for its methods.

    Attributes:
        open_reader: Opens the reader of a stream.
        lookback_bytes: Bytes before a place that its reader needs to search for the
            first record at or after the place.
        sure: Whether that search cannot go wrong.
    """

    open_reader: OpenReader
    lookback_bytes = 0
    sure = False

    def read(self, request: ReadRequest) -> StreamRange:
        return StreamRange(request, self)
