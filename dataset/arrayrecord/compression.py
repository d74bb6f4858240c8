"""The compression of the parts of chunks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import brotli
import cramjam
import zstandard

from gristmill.dataset.arrayrecord.writer_options import (
    WINDOW_LOG,
    WriterOptions,
)

# Zstd has settings for sizes up to 16 KiB, 128 KiB, 256 KiB and above. A small record
# by itself gets those of the next size: up to a third faster, and as small within
# 0.5 %. Everything else gets those for large sizes, as the official writer uses.
_SMALL_BYTES = 16 << 10
_SMALL_SETTINGS_BYTES, _LARGE_SETTINGS_BYTES = 32 << 10, 1 << 20
Compress = Callable[[Sequence[bytes]], Iterable[Any]]


def compressor(options: WriterOptions) -> Compress:
    """Returns a function that compresses each of some parts to an object with a buffer.

    It is for one thread at a time. Equal parts give equal bytes with the same
    version of the codec, on any machine.
    """
    name, _, level = options.compression.partition(":")
    if name == "zstd":
        alone = options.group_size == 1
        return _Zstd(int(level), small_bytes=_SMALL_BYTES if alone else -1)
    if name == "brotli":
        quality = int(level)
        return lambda parts: [brotli.compress(each, quality=quality) for each in parts]
    if name == "snappy":
        return lambda parts: map(cramjam.snappy.compress_raw, parts)
    return lambda parts: parts


def codec_version(options: WriterOptions) -> str:
    """Returns the codec's library and version, such as `zstd-1.5.7`.

    Other versions may produce other bytes.
    """
    name = options.compression.partition(":")[0]
    if name == "zstd":
        return f"zstd-{'.'.join(map(str, zstandard.ZSTD_VERSION))}"
    import importlib.metadata  # Readers, which need no version, save 20 ms.

    if name == "brotli":
        return f"brotli-{importlib.metadata.version('brotli')}"
    if name == "snappy":
        return f"cramjam-{importlib.metadata.version('cramjam')}"
    return "uncompressed"


class _Zstd:
    """Compresses runs of parts of like size, each in a call."""

    def __init__(self, level: int, *, small_bytes: int):
        self._small_bytes = small_bytes

        def codec(settings_bytes: int) -> zstandard.ZstdCompressor:
            parameters = zstandard.ZstdCompressionParameters.from_level(
                level, source_size=settings_bytes, window_log=WINDOW_LOG
            )
            return zstandard.ZstdCompressor(compression_params=parameters)

        self._small, self._large = map(
            codec, (_SMALL_SETTINGS_BYTES, _LARGE_SETTINGS_BYTES)
        )
        self._empty = self._small.compress(b"")

    def __call__(self, parts: Sequence[bytes]) -> Sequence[Any]:
        is_small = [len(part) <= self._small_bytes for part in parts]
        if len({*is_small}) == 1:
            return self._call(self._small if is_small[0] else self._large, parts)
        runs = itertools.groupby(zip(is_small, parts, strict=True), lambda one: one[0])
        return [
            compressed
            for small, run in runs
            for compressed in self._call(
                self._small if small else self._large, [part for _, part in run]
            )
        ]

    def _call(
        self, codec: zstandard.ZstdCompressor, parts: Sequence[bytes]
    ) -> Sequence[Any]:
        if len(parts) == 1:
            return [codec.compress(parts[0])]
        if not any(parts):  # The library refuses empty input.
            return [self._empty] * len(parts)
        # One thread, as others may be at work.
        many: Any = codec.multi_compress_to_buffer(list(parts))
        return list(many)


# The largest window that zstd allocates by default.
_WINDOW_LOG, _LEAST_WINDOW_LOG = 27, 17

_NONE, _ZSTD, _BROTLI, _SNAPPY = 0, ord("z"), ord("b"), ord("s")

COMPRESSIONS = (_NONE, _ZSTD, _BROTLI, _SNAPPY)
"""How a chunk's parts are compressed: the first byte of its data."""


def decompress(kind: int, part: memoryview, size: int) -> bytes:
    """Decompresses a part of a chunk, given the size that it claims to decode to.

    Raises ValueError if it cannot be decompressed to that size.
    """
    if kind == _NONE:
        return bytes(part)
    if kind == _ZSTD:
        return decompress_frame(part, size) if size else b""
    decode = (
        cramjam.brotli.decompress_into
        if kind == _BROTLI
        else cramjam.snappy.decompress_raw_into
    )
    # Into a buffer of the stated size: damaged data cannot make it larger. One byte
    # more, to tell too much from exactly enough.
    room = bytearray(size + 1)
    try:
        got = decode(part, room)
    except Exception as e:  # cramjam's errors have no public base.
        raise ValueError(f"cannot be decompressed: {e}") from e
    if got != size:
        raise ValueError(f"decompressed to {got:,} bytes instead of {size:,}")
    return bytes(memoryview(room)[:size])


class _Local(threading.local):
    """One decompressor per thread."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_LOCAL = _Local()


def decompress_frame(frame: Any, decoded_bytes: int) -> bytes:
    """Decompresses one zstd frame that claims to decode to at least one byte.

    Raises:
        ValueError: It cannot be decompressed, or decodes to another size.
        MemoryError: Its content does not fit into memory.
    """
    try:
        # zstandard trusts the size that a frame states.
        claim = zstandard.frame_content_size(frame)
        if claim not in (-1, decoded_bytes):
            raise ValueError(f"decodes to {claim:,} bytes instead of {decoded_bytes:,}")
        decoded = _LOCAL.zstd.decompress(frame, max_output_size=decoded_bytes)
    except zstandard.ZstdError as e:
        decoded = _decompress_wide(frame, decoded_bytes, e)
    if len(decoded) != decoded_bytes:
        raise ValueError(
            f"decompressed to {len(decoded):,} bytes instead of {decoded_bytes:,}"
        )
    return decoded


def _decompress_wide(
    frame: Any, decoded_bytes: int, error: zstandard.ZstdError
) -> bytes:
    """Decompresses a frame whose window zstd refused; raises other errors.

    Zstd could allocate up to 2 GiB for a frame of a few bytes. No frame needs more than
    its decoded size, so the window gets that size.
    """
    try:
        if zstandard.get_frame_parameters(frame).window_size <= 1 << _WINDOW_LOG:
            raise error
        log = max(_LEAST_WINDOW_LOG, (decoded_bytes - 1).bit_length())
        head = bytearray(frame[:6])
        if not head[4] & 0x20:  # Otherwise its window is the size of its content.
            head[5] = (log - 10) << 3
        zstd = zstandard.ZstdDecompressor(max_window_size=1 << max(log, _WINDOW_LOG))
        return zstd.decompress(
            b"".join((head, frame[6:])), max_output_size=decoded_bytes
        )
    except zstandard.ZstdError as e:
        if "not enough memory" in str(e):  # This says nothing about the frame.
            raise MemoryError(str(e)) from e
        raise ValueError(f"cannot be decompressed: {e}") from e
