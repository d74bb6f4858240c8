"""HighwayHash-64 with Riegeli's key: the hash in the headers of chunks and blocks.

A compiled part computes it at 10 GB/s on processors with AVX2, at 1 GB/s on others. An
installation without a C compiler lacks it, and gets the same values from numpy. There,
each step takes 32 bytes of many spans together: 80 to 300 MB/s for 4 MB in spans of 100
bytes to 100 KB. A span alone is hashed at 3 MB/s.

Sources: https://arxiv.org/abs/1612.06257, riegeli/chunk_encoding/hash.cc (the key).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord import compiled

_PACKET_BYTES = 32
_HALF, _LOW_HALF = np.uint64(32), np.uint64(0xFFFF_FFFF)
_KEY = np.frombuffer(b"Riegeli/records\nRiegeli/records\n", "<u8")
_MUL0 = np.array(
    [0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3],
    np.uint64,
)
_MUL1 = np.array(
    [0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377],
    np.uint64,
)
# The lanes v1, v0, mul0 and mul1 of a hash that has begun.
_BEGIN = (_MUL1 ^ (_KEY >> _HALF | _KEY << _HALF), _MUL0 ^ _KEY, _MUL0, _MUL1)
_SPANS = 2048  # Spans that are hashed together.
# Source of each of 16 bytes when a state is mixed.
_ZIPPER = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7])
_ZIPPER = np.concatenate([_ZIPPER, _ZIPPER + 16])

IntArray = npt.NDArray[np.int64]
HashArray = npt.NDArray[np.uint64]


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
    if compiled.part is None:
        return hash_by_numpy(np.frombuffer(buffer, np.uint8), begin, end)
    hashes = np.empty(len(begin), np.uint64)
    columns = (np.ascontiguousarray(column, np.int64) for column in (begin, end))
    compiled.part.hash_spans(buffer, *columns, hashes)
    return hashes


def hash_bytes(data: bytes | memoryview) -> int:
    """Returns the hash of one buffer. For many, `hash_spans` is faster."""
    if compiled.part is not None:
        return int(compiled.part.hash_bytes(data))
    zero = np.zeros(1, np.int64)
    return int(hash_spans(data, zero, zero + len(data))[0])


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
    states = [np.tile(lanes, (len(sizes), 1)) for lanes in _BEGIN]
    packets, rest = sizes // _PACKET_BYTES, sizes % _PACKET_BYTES
    # A view with a packet at every byte: only the chosen ones are copied.
    count = max(0, len(data) - _PACKET_BYTES + 1)
    windows = np.ndarray(count, f"V{_PACKET_BYTES}", data, strides=(1,))
    steps = np.arange(packets.max(initial=0))
    for step, spans in enumerate(np.searchsorted(-packets, -steps).tolist()):
        packet = windows[at[:spans] + _PACKET_BYTES * step].view("<u8")
        _update([state[:spans] for state in states], packet.reshape(-1, 4))
    if len(some := np.flatnonzero(rest)):
        part, size = [state[some] for state in states], rest[some]
        wide = size.astype(np.uint64)[:, None]
        part[1] += wide << _HALF | wide
        turn = size.astype(np.uint32)[:, None]
        halves = part[0].view(np.uint32)
        part[0] = (halves << turn | halves >> (np.uint32(32) - turn)).view(np.uint64)
        ends = (at + sizes)[some].tolist()
        tails = [data[e - n : e].tobytes() for e, n in zip(ends, size, strict=True)]
        last = np.frombuffer(b"".join(map(_last_packet, tails)), "<u8")
        _update(part, last.reshape(-1, 4))
        for state, own in zip(states, part, strict=True):
            state[some] = own
    for _ in range(4):
        turned = states[1][:, [2, 3, 0, 1]]
        _update(states, turned >> _HALF | turned << _HALF)
    return np.asarray(sum(state[:, 0] for state in states))


def _update(states: list[HashArray], packet: HashArray) -> None:
    """Takes the next packets of spans: uint64 [spans, 4]."""
    v1, v0, mul0, mul1 = states
    v1 += packet + mul0
    mul0 ^= (v1 & _LOW_HALF) * (v0 >> _HALF)
    v0 += mul1
    mul1 ^= (v0 & _LOW_HALF) * (v1 >> _HALF)
    for mixed, source in ((v0, v1), (v1, v0)):
        mixed += source.view(np.uint8).take(_ZIPPER, 1).view(np.uint64)


def _last_packet(tail: bytes) -> bytes:
    """Lays out the last bytes, 1 to 31 of them, as a packet."""
    whole, odd = len(tail) & ~3, len(tail) & 3
    packet = bytearray(tail[:whole].ljust(_PACKET_BYTES, b"\0"))
    if len(tail) >= 16:
        packet[28:] = tail[-4:]
    elif odd:
        packet[16:19] = tail[whole], tail[whole + (odd >> 1)], tail[-1]
    return bytes(packet)
