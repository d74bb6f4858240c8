"""The crc32c of documents' ids as little-endian uint32, whole or in pieces."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

ID_BYTES = 4

_POLYNOMIAL = np.uint32(0x82F63B78)  # Polynomial of crc32c, lowest bit first.


def crc32cs_of(
    ids: npt.NDArray[np.uint32], lengths: npt.NDArray[Any]
) -> npt.NDArray[np.uint32]:
    """Returns the crc32c of each of some runs of tokens.

    Args:
        ids: uint32 [tokens], the runs end to end.
        lengths: [runs], in tokens.
    """
    data = ids.astype("<u4", copy=False).tobytes()
    ends = np.cumsum(lengths, dtype=np.int64) * ID_BYTES
    value = google_crc32c.value
    pairs = itertools.pairwise([0, *ends.tolist()])
    found = (value(data[begin:end]) for begin, end in pairs)
    return np.fromiter(found, np.uint32, len(lengths))


def followed_by(
    crc32cs: npt.NDArray[np.uint32], following_bytes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Returns the terms of parts in the crc32c of a whole, given what follows each.

    The crc32c of the whole is the exclusive or of these terms, as in `crc32_combine` of
    zlib. Each part is given by its own crc32c.

    Args:
        crc32cs: uint32 [parts].
        following_bytes: int64 [parts], the number of bytes after the part.
    """
    found = crc32cs.copy()
    for bit in range(int(following_bytes.max(initial=0)).bit_length()):
        moved = np.flatnonzero(following_bytes >> bit & 1)
        found[moved] = _mapped(found[moved], _zero_bytes(bit))
    return found


def _mapped(
    crc32cs: npt.NDArray[np.uint32], tables: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Applies a linear map, given by the images of all values of each byte."""
    found = np.zeros_like(crc32cs)
    for place in range(4):
        byte = crc32cs >> np.uint32(8 * place) & np.uint32(0xFF)
        found ^= tables[place, byte]
    return found


@functools.cache
def _zero_bytes(bit: int) -> npt.NDArray[np.uint32]:
    """Returns the map of 2**bit zero bytes that follow, as uint32 [4, 256]."""
    if bit:
        half = _zero_bytes(bit - 1)
        return _mapped(half.ravel(), half).reshape(half.shape)
    places = np.arange(0, 32, 8, dtype=np.uint32)
    values = np.arange(256, dtype=np.uint32) << places[:, np.newaxis]
    for _ in range(8):
        values = values >> np.uint32(1) ^ (values & np.uint32(1)) * _POLYNOMIAL
    return values
