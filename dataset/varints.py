"""Varints, as Riegeli and protocol buffers write them, many at a time.

Seven bits a byte, the lowest first; the high bit says that more follow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_VARINT_BYTES = 9  # Of a number below 2**63, which is what int64 holds.

IntArray = npt.NDArray[np.int64]


def decode_varints(data: npt.NDArray[np.uint8]) -> IntArray:
    """Decodes bytes that hold varints and nothing else, all at once."""
    ends = np.flatnonzero(data < 0x80)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise ValueError("the last varint is cut short")
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if (lengths > MAX_VARINT_BYTES).any():
        raise ValueError("varint above 2**63")
    values = np.zeros(len(ends), np.int64)
    for index in range(int(lengths.max(initial=0))):
        longer = lengths > index
        byte = data[starts[longer] + index].astype(np.int64) & 0x7F
        values[longer] |= byte << (7 * index)
    return values


def varints_at(
    data: npt.NDArray[np.uint8], positions: IntArray
) -> tuple[IntArray, IntArray]:
    """Decodes the varint at each position; returns values and the positions after."""
    values = np.zeros(len(positions), np.int64)
    after = positions.copy()
    going = np.arange(len(positions))
    for index in range(MAX_VARINT_BYTES):
        byte = data[after[going]].astype(np.int64)
        values[going] |= (byte & 0x7F) << (7 * index)
        after[going] += 1
        going = going[byte >= 0x80]
        if not len(going):
            return values, after
    raise ValueError("varint above 2**63")
