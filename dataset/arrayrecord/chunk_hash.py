"""HighwayHash-64 with Riegeli's key: the hash in the headers of chunks and blocks.

A compiled part computes it at 10 GB/s on processors with AVX2, at 1 GB/s on others. An
installation without a C compiler lacks it, and gets the same values from numpy. There,
each step takes 32 bytes of many spans together: 70 to 180 MB/s for 4 MB in spans of 100
bytes to 100 KB. A span alone is hashed at 4 MB/s.

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
# Arrays, which numpy takes faster than scalars.
_HALF = np.array([32], np.uint64)
_LOW_HALF = np.array([0xFFFF_FFFF], np.uint64)
# Spans that are hashed together, and how much of them is copied at a time.
_SPANS = 2048
_COPIED_BYTES = 1 << 16
# Source of each of 16 bytes when a state is mixed.
_ZIPPER = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7])
_ZIPPER = np.concatenate([_ZIPPER, _ZIPPER + 16])
# Where each lane comes from when a state is finished.
_TURNED = (np.arange(_SPANS)[:, None] * 4 + [2, 3, 0, 1]).ravel()

IntArray = npt.NDArray[np.int64]
HashArray = npt.NDArray[np.uint64]


def _import_compiled() -> types.ModuleType | None:
    try:
        return importlib.import_module("gristmill.dataset.arrayrecord._chunk_hash")
    except ImportError:
        return None


compiled_part: Any = _import_compiled()
"""The compiled part, None where it is not installed."""


def is_compiled() -> bool:
    """Returns whether the compiled part is installed."""
    return compiled_part is not None


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
    if compiled_part is None:
        return hash_by_numpy(np.frombuffer(buffer, np.uint8), begin, end)
    hashes = np.empty(len(begin), np.uint64)
    columns = (np.ascontiguousarray(column, np.int64) for column in (begin, end))
    compiled_part.hash_spans(buffer, *columns, hashes)
    return hashes


def hash_bytes(data: bytes | memoryview) -> int:
    """Returns the hash of one buffer. For many, `hash_spans` is faster."""
    if compiled_part is not None:
        return int(compiled_part.hash_bytes(data))
    zero = np.zeros(1, np.int64)
    return int(hash_spans(data, zero, zero + len(data))[0])


def _exchanged(values: HashArray) -> HashArray:
    """Returns values with their halves of 32 bits exchanged."""
    return values >> _HALF | values << _HALF


class _States:
    """The states of hashes side by side: four lanes of 64 bits for each span.

    Attributes:
        v: uint64 [2, 4 spans], the lanes `v1` and `v0` of the algorithm.
        mul: uint64 [2, 4 spans], its `mul0` and `mul1`.
    """

    def __init__(self, v: HashArray, mul: HashArray):
        self.v, self.mul = v, mul
        self._high, self._low = np.empty_like(v), np.empty_like(v)

    @classmethod
    def begun(cls, spans: int) -> _States:
        """Returns states of which nothing is hashed yet."""
        v = _MUL1 ^ _exchanged(_KEY), _MUL0 ^ _KEY
        columns = np.empty((2, 2, spans, 4), np.uint64)
        columns[0], columns[1] = (
            np.stack(each)[:, None] for each in (v, (_MUL0, _MUL1))
        )
        return cls(*columns.reshape(2, 2, -1))

    def update(self, packets: HashArray) -> None:
        """Takes the next packets of the first spans: uint64 [steps, 4 spans]."""
        width = packets.shape[1]
        columns = (self.v, self.mul, self._high, self._low)
        v, mul, high, low = (column[:, :width] for column in columns)
        (v1, v0), (high0, high1), mixed = v, high, low[0]
        bytes1, bytes0, mixed_bytes = (
            each.view(np.uint8).reshape(-1, _PACKET_BYTES) for each in (v1, v0, mixed)
        )
        # Few operations, into arrays that are there: for ten spans, a step takes as
        # long as the calls.
        for packet in packets:
            np.right_shift(v0, _HALF, high0)
            np.add(v, mul, v)
            np.add(v1, packet, v1)
            np.right_shift(v1, _HALF, high1)
            np.bitwise_and(v, _LOW_HALF, low)
            np.multiply(low, high, low)
            np.bitwise_xor(mul, low, mul)
            bytes1.take(_ZIPPER, 1, mixed_bytes, "clip")
            np.add(v0, mixed, v0)
            bytes0.take(_ZIPPER, 1, mixed_bytes, "clip")
            np.add(v1, mixed, v1)

    def take_last(
        self, data: npt.NDArray[np.uint8], ends: IntArray, sizes: IntArray
    ) -> None:
        """Takes the last bytes, 0 to 31, of each span."""
        if not sizes.any():
            return
        every = bool(sizes.all())
        part = self if every else _States(self.v.copy(), self.mul.copy())
        wide = np.repeat(sizes.astype(np.uint64), 4)
        part.v[1] += wide << _HALF | wide
        halves = part.v[0].view(np.uint32)
        turn = np.repeat(sizes.astype(np.uint32), 8)
        turned = halves << turn | halves >> (np.uint32(32) - turn)
        part.v[0] = turned.view(np.uint64)
        source = _LAST_FROM.take(sizes, 0)
        source += (ends - sizes)[:, None]
        last = data.take(source, None, None, "clip")
        last *= _LAST_TAKEN.take(sizes, 0)
        part.update(last.view("<u8").reshape(1, -1))
        if not every:
            some = np.repeat(sizes > 0, 4)
            np.copyto(self.v, part.v, where=some)
            np.copyto(self.mul, part.mul, where=some)

    def finish(self) -> HashArray:
        """Returns the hashes: uint64 [spans]."""
        for _ in range(4):
            turned = self.v[1].take(_TURNED[: self.v.shape[1]])
            self.update(_exchanged(turned)[None])
        (v1, v0), (mul0, mul1) = self.v, self.mul
        hashes: HashArray = (v0 + v1 + mul0 + mul1)[::4]
        return hashes


def hash_by_numpy(
    data: npt.NDArray[np.uint8], begin: IntArray, end: IntArray
) -> HashArray:
    """Hashes spans side by side, as many as the processor's cache holds."""
    sizes = end - begin
    if (begin < 0).any() or (sizes < 0).any() or (end > len(data)).any():
        raise IndexError("a span is outside")
    hashes = np.empty(len(sizes), np.uint64)
    # The longest first: those that still have packets are then the first ones.
    order = np.argsort(-sizes, kind="stable")
    for first in range(0, len(order), _SPANS):
        chosen = order[first : first + _SPANS]
        hashes[chosen] = _hash_together(data, begin[chosen], sizes[chosen])
    return hashes


def _hash_together(
    data: npt.NDArray[np.uint8], at: IntArray, sizes: IntArray
) -> HashArray:
    """Hashes spans, the longest first, a packet of each at a step."""
    states = _States.begun(len(sizes))
    packets = sizes // _PACKET_BYTES
    # A view with a packet at every byte: only the chosen ones are copied.
    count = max(0, len(data) - _PACKET_BYTES + 1)
    windows = np.ndarray(count, f"V{_PACKET_BYTES}", data, strides=(1,))
    step = 0
    for last in np.unique(packets).tolist():
        spans = int(np.searchsorted(-packets, -last, side="right"))
        steps = max(1, _COPIED_BYTES // (_PACKET_BYTES * spans))
        while step < last:
            numbers = np.arange(step, min(step + steps, last))
            copied = windows[at[:spans] + _PACKET_BYTES * numbers[:, None]]
            states.update(copied.view("<u8").reshape(len(numbers), -1))
            step += len(numbers)
    states.take_last(data, at + sizes, sizes % _PACKET_BYTES)
    return states.finish()


def _last_bytes() -> tuple[IntArray, npt.NDArray[np.uint8]]:
    """Returns how the last bytes of a span make a packet, by their number.

    That is int64 [32, 32], where each byte of the packet comes from, and uint8
    [32, 32], 1 if it comes from there and 0 if it is zero.
    """
    source = np.full((_PACKET_BYTES, _PACKET_BYTES), -1, np.int64)
    for size in range(1, _PACKET_BYTES):
        whole, odd = size & ~3, size & 3
        source[size, :whole] = np.arange(whole)
        if size >= 16:
            source[size, 28:] = np.arange(size - 4, size)
        elif odd:
            source[size, 16:19] = whole, whole + (odd >> 1), size - 1
    return np.maximum(source, 0), (source >= 0).astype(np.uint8)


_LAST_FROM, _LAST_TAKEN = _last_bytes()
