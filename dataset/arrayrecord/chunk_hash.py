"""HighwayHash-64 with Riegeli's key: the hash in the headers of chunks and blocks.

A compiled part computes it at 10 GB/s on processors with AVX2, at 1 GB/s on others. An
installation without a C compiler lacks it, and gets the same values from numpy. There,
each step takes 32 bytes of all spans together: 4 us a span for a thousand of 1 KB, and
0.2 s for one of 1 MiB.

Sources: https://arxiv.org/abs/1612.06257, riegeli/chunk_encoding/hash.cc (the key).
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import numpy as np
import numpy.typing as npt

_PACKET_BYTES = 32
_KEY = np.frombuffer(b"Riegeli/records\nRiegeli/records\n", "<u8")
_MUL0 = np.array(
    [0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3],
    np.uint64,
)
_MUL1 = np.array(
    [0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377],
    np.uint64,
)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFF_FFFF)
# Source of each of 16 bytes when a state is mixed.
_ZIPPER = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7])
_ZIPPER = np.concatenate([_ZIPPER, _ZIPPER + 16])

IntArray = npt.NDArray[np.int64]
HashArray = npt.NDArray[np.uint64]


def _compiled_part() -> types.ModuleType | None:
    try:
        return importlib.import_module("gristmill.dataset.arrayrecord._chunk_hash")
    except ImportError:
        return None


_compiled: Any = _compiled_part()


def is_compiled() -> bool:
    """Returns whether the compiled part is installed."""
    return _compiled is not None


def hash_spans(
    buffer: bytes | bytearray | memoryview | npt.NDArray[np.uint8],
    begin: IntArray,
    end: IntArray,
) -> HashArray:
    """Returns the hash of each of many spans of a buffer.

    Args:
        buffer: Contiguous bytes.
        begin: int64 [spans], start of each.
        end: int64 [spans], one past its last byte, not past the end of the buffer.

    Returns:
        uint64 [spans].
    """
    if _compiled is None:
        return _hash_by_numpy(np.frombuffer(buffer, np.uint8), begin, end)
    hashes = np.empty(len(begin), np.uint64)
    columns = (np.ascontiguousarray(column, np.int64) for column in (begin, end))
    _compiled.hash_spans(buffer, *columns, hashes)
    return hashes


def hash_bytes(data: bytes | memoryview) -> int:
    """Returns the hash of one buffer. For many, `hash_spans` is faster."""
    if _compiled is not None:
        return int(_compiled.hash_bytes(data))
    zero = np.zeros(1, np.int64)
    return int(hash_spans(data, zero, zero + len(data))[0])


def _exchanged(values: HashArray) -> HashArray:
    """Returns values with their halves of 32 bits exchanged."""
    return values >> _HALF | values << _HALF


def _zippered(values: HashArray) -> HashArray:
    return values.view(np.uint8).take(_ZIPPER, axis=1).view(np.uint64)


class _States:
    """States of many hashes: four columns of uint64 [spans, 4], longest first."""

    def __init__(self, *columns: HashArray):
        self.columns = columns

    def update(self, packets: HashArray) -> None:
        """Takes the next packet of each of the first spans: uint64 [n, 4]."""
        v0, v1, mul0, mul1 = (column[: len(packets)] for column in self.columns)
        v1 += mul0
        v1 += packets
        mul0 ^= (v1 & _LOW_HALF) * (v0 >> _HALF)
        v0 += mul1
        mul1 ^= (v0 & _LOW_HALF) * (v1 >> _HALF)
        v0 += _zippered(v1)
        v1 += _zippered(v0)


def _hash_by_numpy(
    data: npt.NDArray[np.uint8], begin: IntArray, end: IntArray
) -> HashArray:
    """Hashes all spans together, one packet of each at a time."""
    sizes = end - begin
    if (begin < 0).any() or (sizes < 0).any() or (end > len(data)).any():
        raise IndexError("a span is outside")
    # Longest first: those that still have packets then come first.
    order = np.argsort(-sizes, kind="stable")
    at, sizes = begin[order], sizes[order]
    packets, rest = sizes // _PACKET_BYTES, sizes % _PACKET_BYTES
    starts = (_MUL0 ^ _KEY, _MUL1 ^ _exchanged(_KEY), _MUL0, _MUL1)
    states = _States(*(np.tile(start, (len(sizes), 1)) for start in starts))
    if len(sizes) and packets[0]:
        count = len(data) - _PACKET_BYTES + 1
        # A view with a packet at every byte: only the chosen ones are copied.
        windows = np.ndarray(count, f"V{_PACKET_BYTES}", data, strides=(1,))
        steps = np.arange(packets[0])
        active = len(sizes) - np.searchsorted(packets[::-1], steps, side="right")
        for step, spans in enumerate(active.tolist()):
            chosen = windows[at[:spans] + _PACKET_BYTES * step]
            states.update(chosen.view("<u8").reshape(-1, 4))
    unfinished = np.flatnonzero(rest)
    if len(unfinished):
        ends = (at + sizes)[unfinished]
        _finish(states, data, unfinished, ends, rest[unfinished])
    for _ in range(4):
        states.update(_exchanged(states.columns[0][:, [2, 3, 0, 1]]))
    hashes = np.empty(len(sizes), np.uint64)
    hashes[order] = sum(column[:, 0] for column in states.columns)
    return hashes


def _finish(
    states: _States,
    data: npt.NDArray[np.uint8],
    spans: IntArray,
    ends: IntArray,
    sizes: IntArray,
) -> None:
    """Takes the last bytes, 1 to 31, of some spans."""
    v0, v1, mul0, mul1 = (column[spans] for column in states.columns)
    wide = sizes.astype(np.uint64)[:, None]
    v0 += wide << _HALF | wide
    halves, turn = v1.view(np.uint32), wide.astype(np.uint32)
    v1 = (halves << turn | halves >> (np.uint32(32) - turn)).view(np.uint64)
    packets = np.zeros((len(spans), _PACKET_BYTES), np.uint8)
    begins, whole, odd = ends - sizes, sizes & ~3, sizes & 3

    def put(place: int, chosen: npt.NDArray[np.bool_], source: IntArray) -> None:
        packets[chosen, place] = data[source[chosen]]

    for place in range(28):
        put(place, whole > place, begins + place)
    for place in range(4):
        put(28 + place, sizes >= 16, ends - 4 + place)
    few = (sizes < 16) & (odd > 0)
    for place, source in enumerate((whole, whole + (odd >> 1), sizes - 1), 16):
        put(place, few, begins + source)
    part = _States(v0, v1, mul0, mul1)
    part.update(packets.view("<u8"))
    for column, values in zip(states.columns, part.columns, strict=True):
        column[spans] = values
