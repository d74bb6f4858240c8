"""Streams of bytes that are read forward: decompressed, and as records."""

from __future__ import annotations

import abc
import contextlib
import io
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, ClassVar, Literal, NamedTuple, Protocol, get_args

import zstandard

from gristmill.dataset.base.errors import CorruptRecordError, CorruptStreamError


class RecordBatch(NamedTuple):
    """Records that follow one another in a file. Lists are [records].

    Attributes:
        places: Place of each, ascending: the offset of its first byte in the
            (decompressed) file, or its number among the rows or records of the file.
        records: The records.
        crc32cs: Their (unmasked) checksums, checked if they came with one.
        null_rows: Number of rows among them that were left out for their nulls.
    """

    places: Sequence[int]
    records: list[bytes]
    crc32cs: list[int]
    null_rows: int = 0


Compression = Literal["none", "gzip", "zlib", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)

_WINDOW_BITS = {"gzip": 31, "zlib": 15}
_ZSTD_MAGIC = b"(\xb5/\xfd"
# Magic numbers of frames that decoders skip, which pzstd writes first.
_ZSTD_SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
READ_BYTES = 1 << 20  # Takes half the CPU of 4 MiB: a block stays in the cache.
# Four bytes of zstd can hold 128 KiB: read this many at a time, fewer if they held
# much.
_ZSTD_STEP_BYTES = 4096
# The window of `--ultra --long=31`; decoders refuse more than 128 MiB by default.
_MOST_WINDOW_BYTES = 1 << 31
_ZSTD_MUCH_BYTES, _ZSTD_SHORT_STEP_BYTES = 1 << 20, 256


def detect_compression(head: bytes) -> Compression:
    """Returns how a file seems to be compressed, from its first 12 bytes or more."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(_ZSTD_MAGIC) or _ZSTD_SKIPPED.match(head):
        return "zstd"
    # The two bytes of zlib's header are too few to decide: try to decompress.
    try:
        zlib.decompressobj(_WINDOW_BITS["zlib"]).decompress(head)
    except zlib.error:
        return "none"
    return "zlib" if len(head) >= 2 else "none"


def zstd_dictionary(head: bytes) -> int:
    """Returns the number of the dictionary that a zstd file needs, 0 for none."""
    with contextlib.suppress(zstandard.ZstdError):
        return int(zstandard.get_frame_parameters(head).dict_id)
    return 0


def inflated_head(
    head: bytes, compression: Compression, size: int, *, whole: bool = False
) -> bytes:
    """Returns the first decompressed bytes of a file, fewer if it is damaged.

    Args:
        head: Its first bytes as stored.
        compression: How it is compressed.
        size: Maximum number to return.
        whole: Whether these are all bytes of the file, so that damage is an error.

    Raises:
        CorruptStreamError: The whole file is damaged within these bytes.
    """
    found = b""
    stream = InflatedStream(io.BytesIO(head), path="", compression=compression)
    try:
        while len(found) < size and (piece := stream.read(size - len(found))):
            found += piece
    except CorruptStreamError:
        if whole:
            raise
    return found


class Readable(Protocol):
    """Bytes that are read forward."""

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes, none only at the end."""


class _ZstdInflater:
    """Decompresses one zstd frame, with the interface of zlib's objects.

    It returns all that its input holds, whatever size is requested.
    """

    def __init__(self) -> None:
        self._inflater = zstandard.ZstdDecompressor(
            max_window_size=_MOST_WINDOW_BYTES
        ).decompressobj()
        self._step = _ZSTD_STEP_BYTES
        self.unconsumed_tail = b""

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflater.unused_data + self.unconsumed_tail

    def copy(self) -> _ZstdInflater:
        return self  # Data before damage was returned by earlier steps.

    def decompress(self, data: bytes, size: int) -> bytes:
        found, used = b"", 0
        while used < len(data) and not found and not self.eof:
            found = self._inflater.decompress(data[used : used + self._step])
            used = min(used + self._step, len(data))
        much = len(found) > _ZSTD_MUCH_BYTES
        self._step = _ZSTD_SHORT_STEP_BYTES if much else _ZSTD_STEP_BYTES
        self.unconsumed_tail = data[used:]
        return found


def _inflater(compression: Compression) -> Any:
    if compression == "zstd":
        return _ZstdInflater()
    return zlib.decompressobj(_WINDOW_BITS[compression])


class InflatedStream:
    """The decompressed bytes of a gzip, zlib or zstd stream, read forward.

    Concatenated gzip members are read as one, as TensorFlow does, and so are zstd
    frames; zeros after a gzip member are passed over, as gzip(1) does. Memory is
    bounded by the size of one read, whatever the compressed data claims; for zstd, by
    its window, and the most that 4 KiB can hold, 128 MiB. Data before damage is
    returned before the error is raised.

    Args:
        stream: The compressed bytes.
        path: Path of the file, for messages.
        compression: `gzip`, `zlib` or `zstd`.
        marks: Offsets in the compressed bytes, ascending and above 0: the number of
            decompressed bytes before each is recorded.
    """

    def __init__(
        self,
        stream: Readable,
        *,
        path: str,
        compression: Compression,
        marks: Iterable[int] = (),
    ):
        self._stream = stream
        self._path = path
        self._compression = compression
        self._inflater = _inflater(compression)
        self._surplus = memoryview(b"")
        self._pending = b""
        self._started = False
        self._error: CorruptStreamError | None = None
        self.compressed_bytes = 0
        self._inflated_bytes = 0
        self._ahead = deque(marks)
        self._passed: dict[int, int] = {0: 0}

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes; an empty result means the end.

        Raises CorruptStreamError if the stream is damaged or cut short here.
        """
        if self._surplus:
            return self._up_to(size, self._surplus)
        while self._error is None:
            if not self._pending and self._at_mark():
                if data := self._drained(size):
                    return self._up_to(size, data)
                continue
            if not self._pending:
                self._pending = self._stream.read(self._next_bytes())
                self.compressed_bytes += len(self._pending)
            if not self._pending:
                if self._started and not self._inflater.eof:
                    self._error = self._damaged("it ends in the middle of its stream")
                    break
                return b""
            if self._inflater.eof and self._compression == "gzip":
                # Tapes pad files with zeros, which gzip(1) passes over.
                self._pending = self._pending.lstrip(b"\0")
                if not self._pending:
                    continue
            if self._inflater.eof:
                self._inflater = _inflater(self._compression)
            data = self._inflate(size)
            self._inflated_bytes += len(data)
            if data:
                return self._up_to(size, data)
        raise self._error

    def _up_to(self, size: int, data: bytes | memoryview) -> bytes:
        if len(data) <= size:
            self._surplus = memoryview(b"")
            return bytes(data)
        self._surplus = memoryview(data)[size:]
        return bytes(data[:size])

    def _next_bytes(self) -> int:
        """Returns the number of bytes to read: at most up to the next mark."""
        if not self._ahead:
            return READ_BYTES
        return min(READ_BYTES, self._ahead[0] - self.compressed_bytes)

    def _at_mark(self) -> bool:
        return bool(self._ahead) and self.compressed_bytes == self._ahead[0]

    def _drained(self, size: int) -> bytes:
        """Returns the rest of the bytes before a mark, and records the mark.

        The decompressed size of a number of bytes depends on the format, and not on the
        size of reads. The last of the bytes can be damaged.
        """
        data: bytes = b""
        if self._started and not self._inflater.eof:
            data = self._inflate(size)
            self._inflated_bytes += len(data)
        if not data and self._error is None:
            self._passed[self._ahead.popleft()] = self._inflated_bytes
        return data

    def inflated_offset(self, mark: int) -> int | None:
        """Returns the number of decompressed bytes before a mark.

        None until a byte after the mark was read.
        """
        return self._passed.get(mark)

    def _inflate(self, size: int) -> bytes:
        before = self._inflater.copy()
        self._started = True
        try:
            data: bytes = self._inflater.decompress(self._pending, size)
        except zstandard.ZstdError as e:
            self._error = self._damaged(str(e))
            return b""
        except zlib.error as e:
            if str(e).startswith("Error -4 "):  # Z_MEM_ERROR is not damage.
                raise MemoryError(f"zlib: {e}") from e
            data = self._salvage(before)
            self._error = self._damaged(str(e))
            return data
        done = self._inflater
        self._pending = done.unused_data if done.eof else done.unconsumed_tail
        return data

    def _salvage(self, inflater: Any) -> bytes:
        """Returns the data before the damaged byte, which zlib's error withholds."""
        pieces = []
        step = 1 << len(self._pending).bit_length()
        while step := step >> 1:
            tried = inflater.copy()
            with contextlib.suppress(zlib.error):
                pieces.append(tried.decompress(self._pending[:step]))
                self._pending = self._pending[step:]
                inflater = tried
        return b"".join(pieces)

    @property
    def compressed_offset(self) -> int:
        """Compressed bytes used; after an error, roughly where the damage is."""
        return self.compressed_bytes - len(self._pending)

    def _damaged(self, got: str) -> CorruptStreamError:
        place = f"near compressed byte offset {self.compressed_offset:,}"
        error = CorruptStreamError(
            "compressed file cannot be decompressed",
            where=f"{self._path}, {place}",
            got=got,
            cure="write the file again from its source",
        )
        error.detail = f"one that cannot be decompressed {place}: {got}"
        return error


# A place, or a function that returns it, or None as long as it is not yet known.
End = int | Callable[[], int | None] | None


def end_of(end: End) -> int | None:
    """Returns the place of an end, None if there is none, or it is not yet known."""
    return end() if callable(end) else end


OR_SKIP = ", or keep what can be read with --on-corrupt skip"


class StreamReader(abc.ABC):
    """Reads records forward from a stream, and finds the next one after damage.

    Memory: some blocks or one record, whichever is larger.

    Args:
        stream: Bytes from `offset` on.
        path: Path of the file, for messages.
        offset: Offset in the (decompressed) file of the stream's first byte.
        size_bytes: Size of the file if known; None for compressed streams.
        block_bytes: How much to read at a time.
    """

    error_type: ClassVar[type[CorruptRecordError]] = CorruptRecordError

    def __init__(
        self,
        stream: Readable | BinaryIO,
        *,
        path: str,
        offset: int = 0,
        size_bytes: int | None = None,
        block_bytes: int = READ_BYTES,
    ):
        self.path, self.size_bytes = path, size_bytes
        self._block_bytes = block_bytes
        self._stream_error: CorruptStreamError | None = None
        self._buffer_offset = offset  # File offset of the buffer's first byte.
        self._position = 0  # Position in the buffer of the next byte to read.
        self.restart(stream)

    @abc.abstractmethod
    def batches(self, end: End = None) -> Iterator[RecordBatch]:
        """Yields the records that begin before `end`, one block at a time.

        Args:
            end: File offset, exclusive; None for the end of the file. The last record
                may reach past it.

        Raises:
            CorruptRecordError: At the first record that is damaged, after all before it
                were yielded. The reader stays at its first byte, for `skip` or
                `resync`.
        """

    @abc.abstractmethod
    def begins_at(self, offset: int) -> bool:
        """Returns whether a record begins, or the file ends, at an offset ahead."""

    @abc.abstractmethod
    def resync(self, *, limit: int | None = None) -> bool:
        """Moves forward to where a record seems to begin, before `limit`.

        Returns:
            Whether one was found; if not, the reader is at `limit` or at the end.
        """

    def corrupt(
        self,
        reason: str,
        what: str,
        *,
        expected: str,
        got: str,
        cure: str = f"write the file again from its source{OR_SKIP}",
        offset: int | None = None,
        end: int | None = None,
        of: str = "",
    ) -> CorruptRecordError:
        """Returns the error for damage.

        Args:
            reason: As `CorruptRecordError.reason`; the others too.
            what: What is wrong.
            expected: What should be there.
            got: What is there.
            cure: What can be done.
            offset: Where the record begins; by default here.
            end: Where it ends, if that can be trusted.
            of: Text to add to the place.
        """
        offset = self.offset if offset is None else offset
        where = f"{self.path}, {self.place(offset)}{of}"
        error = self.error_type(
            what, where=where, expected=expected, got=got, cure=cure
        )
        error.reason, error.offset, error.end = reason, offset, end
        error.detail = f"{what}{of}: expected {expected}, got {got}"
        return error

    def place(self, offset: int) -> str:
        """Returns the name of a place, for messages."""
        return f"byte offset {offset:,}"

    def check_stream(self) -> None:
        """Raises CorruptRecordError if the stream ended early; only once.

        The caller may accept the error and continue.
        """
        error, self._stream_error = self._stream_error, None
        if error is None:
            return
        if not error.detail:
            expected, got = str(error.expected), str(error.got)
            raise self.corrupt("truncated", error.what, expected=expected, got=got)
        raise self.corrupt(
            "compressed",
            "compressed file is damaged, or ends too early",
            expected="an intact compressed stream",
            got=error.detail,
        ) from error

    def restart(self, stream: Readable | BinaryIO) -> None:
        """Continues with another stream of the same bytes, which begins at `offset`."""
        self._stream = stream
        self._buffer_offset, self._position = self.offset, 0
        self._buffer = b""
        self._exhausted = False
        self._stream_error = None

    @property
    def offset(self) -> int:
        """File offset of the next byte to be returned."""
        return self._buffer_offset + self._position

    @offset.setter
    def offset(self, to: int) -> None:
        """Moves to an offset in the buffer, or at its end."""
        self._position = to - self._buffer_offset

    def _fill(self, wanted_bytes: int) -> bool:
        """Makes `wanted_bytes` bytes available from the position on, if they exist."""
        missing = wanted_bytes - (len(self._buffer) - self._position)
        if missing <= 0:
            return True
        pieces = [self._buffer[self._position :]]
        # Read in blocks, so that memory grows with the data and not with the claim.
        while missing > 0 and not self._exhausted:
            try:
                block = self._stream.read(self._block_bytes)
            except CorruptStreamError as error:
                # Raised once the data before the damage is used up.
                self._stream_error, block = error, b""
            self._exhausted = not block
            pieces.append(block)
            missing -= len(block)
        self._buffer_offset += self._position
        self._position = 0
        self._buffer = b"".join(pieces)
        return missing <= 0

    def at_end(self) -> bool:
        """Returns whether all bytes are used."""
        return not self._fill(1)

    def skip(self, to: int) -> None:
        """Moves forward to a file offset, or to the end of the file.

        Args:
            to: File offset, not before `offset`.
        """
        while self.offset < to and self._fill(1):
            self._pass(self._buffer[self._position :][: to - self.offset])

    def _pass(self, data: bytes) -> None:
        """Skips the next bytes, which are these."""
        self._position += len(data)
