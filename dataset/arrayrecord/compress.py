"""Compression of the parts of chunks: the counterpart of `compression`.

All codecs run without the interpreter's lock. Zstd takes many parts in one call, so
that the lock is released only once.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import brotli
import cramjam
import numpy as np
import zstandard

from gristmill.dataset.arrayrecord.writer_options import WINDOW_LOG, WriterOptions

# Maximum bytes of one zstd call. Its output is held twice.
_CALL_BYTES = 1 << 20

# Zstd has settings for sizes up to 16 KiB, 128 KiB, 256 KiB and above. A small record
# by itself gets those of the next size: up to a third faster, and as small within
# 0.5 %. Everything else gets those for large sizes, as the official writer uses.
_SMALL_BYTES = 16 << 10
_SMALL_SETTINGS_BYTES, _LARGE_SETTINGS_BYTES = 32 << 10, 1 << 20
Compress = Callable[[Sequence[bytes]], Iterable[Any]]


def compressor(options: WriterOptions) -> Compress:
    """Returns a function that compresses parts: each to an object with a buffer.

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
    if name == "brotli":
        return f"brotli-{importlib.metadata.version('brotli')}"
    if name == "snappy":
        return f"cramjam-{importlib.metadata.version('cramjam')}"
    return "uncompressed"


class _Zstd:
    """Compresses as many parts in a call as fit `_CALL_BYTES`."""

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
        compressed: list[Any] = []
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        is_small = sizes <= self._small_bytes
        borders = (np.flatnonzero(is_small[1:] != is_small[:-1]) + 1).tolist()
        ends = np.cumsum(sizes)
        begin = done_bytes = 0
        for border in (*borders, len(parts)):
            while begin < border:
                room = done_bytes + _CALL_BYTES
                end = int(np.searchsorted(ends[:border], room, side="right"))
                end = max(end, begin + 1)
                codec = self._small if is_small[begin] else self._large
                compressed += self._call(codec, parts[begin:end])
                begin, done_bytes = end, int(ends[end - 1])
        return compressed

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
