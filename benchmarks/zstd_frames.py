"""The compressed records of shards, cut out of their chunks.

To decompress these and do nothing else is the least that reading can cost.
"""

from __future__ import annotations

import functools
import pathlib
import struct
from typing import Any

import numpy as np

from benchmarks.load_data import Shards
from gristmill.dataset.arrayrecord.footer import read_footer
from gristmill.dataset.arrayrecord.walk import ChunkRange
from gristmill.dataset.base.varints import varint_at


def read_frames(
    shards: Shards,
) -> tuple[list[tuple[bytes, int]], np.ndarray[Any, Any]]:
    """Returns the zstd frame of every chunk's records, and the chunk of each record."""
    frames: list[tuple[bytes, int]] = []
    counts: list[int] = []
    for path in shards.paths:
        data = pathlib.Path(path).read_bytes()
        footer = read_footer(functools.partial(_cut, data), len(data), path=path)
        begin = int(footer.chunk_offsets[0])
        last = len(footer.chunk_records)
        chunks = ChunkRange(path, footer, 0, last, 0, data[begin:])
        encoded = chunks.encoded()
        buffer, starts = encoded.buffer, encoded.starts
        for start in starts.tolist():
            size, _, decoded = struct.unpack_from("<8xQ8xQQ", buffer, start)
            sizes_bytes, at = varint_at(buffer, start + 41)
            _, at = varint_at(buffer, at + sizes_bytes)
            frames.append((bytes(buffer[at : start + 40 + size]), decoded))
        counts += footer.chunk_records.tolist()
    return frames, np.repeat(np.arange(len(frames)), counts)


def _cut(data: bytes, begin: int, end: int) -> bytes:
    return data[begin:end]
