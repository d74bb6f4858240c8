"""Some records of a dataset as a bitmap: found by their numbers among themselves.

1.125 bits a record: a bit for each, and for every 512 the count of those before. Of
datasets up to 2^24 records also a table of the numbers, as it is faster.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gristmill.loader.base.indices import IntArray

_BLOCK_WORDS = 8
_BLOCK_BITS = 64 * _BLOCK_WORDS
_TABLE_RECORDS = 1 << 24  # Their table takes at most 64 MiB.


@functools.cache
def _places_in_byte() -> npt.NDArray[np.uint8]:
    """Returns where bit n of those that are set is in a byte: uint8 [256, 8]."""
    bits = np.unpackbits(
        np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
    )
    order = np.argsort(bits == 0, axis=1, kind="stable")
    return order.astype(np.uint8)


class Selection:
    """Numbers of some of the records of a dataset, ascending.

    Args:
        words: uint64, a bit for each record, the lowest first; the last ones are 0.
        total: Number of all records.
        table_records: Most records of a dataset for which there is a table.
    """

    def __init__(
        self,
        words: npt.NDArray[np.uint64],
        total: int,
        *,
        table_records: int = _TABLE_RECORDS,
    ):
        blocks = -(-total // _BLOCK_BITS)
        self._words = words.reshape(blocks, _BLOCK_WORDS)
        self.total = total
        self._before = np.zeros(blocks + 1, np.int64)
        for begin in range(0, blocks, 1 << 14):  # Without an array of all counts.
            rows = self._words[begin : begin + (1 << 14)]
            counts = np.bitwise_count(rows).sum(axis=1, dtype=np.int64)
            self._before[begin + 1 : begin + 1 + len(rows)] = counts
        np.cumsum(self._before, out=self._before)
        self._table: npt.NDArray[np.uint32] | None = None
        if total <= table_records:
            octets = self.words.astype("<u8", copy=False).view(np.uint8)
            bits = np.unpackbits(octets, bitorder="little")
            self._table = np.flatnonzero(bits).astype(np.uint32)

    @staticmethod
    def empty_words(total: int) -> npt.NDArray[np.uint64]:
        """Returns the words of a selection of no record."""
        return np.zeros(-(-total // _BLOCK_BITS) * _BLOCK_WORDS, np.uint64)

    @classmethod
    def of(cls, blocks: Iterable[npt.NDArray[np.bool_]], total: int) -> Selection:
        """Returns the records for which there is a True.

        Args:
            blocks: bool [records] each, of multiples of 512 records but the last.
            total: Number of all records.
        """
        data = cls.empty_words(total).view(np.uint8)
        at = 0
        for block in blocks:
            packed = np.packbits(block, bitorder="little")
            data[at : at + len(packed)] = packed
            at += len(packed)
        return cls(data.view("<u8").astype(np.uint64, copy=False), total)

    def __len__(self) -> int:
        return int(self._before[-1])

    def __reduce__(self) -> tuple[object, ...]:
        return Selection, (self.words, self.total)

    @property
    def words(self) -> npt.NDArray[np.uint64]:
        """The bits, as they were given."""
        return self._words.ravel()

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 over the number of all records, and the bits."""
        hasher = hashlib.sha256(self.total.to_bytes(8, "little"))
        hasher.update(self._words.astype("<u8", copy=False).data)
        return hasher.digest()

    def numbers(self, ranks: IntArray) -> IntArray:
        """Returns the numbers, among all records, of some that were selected.

        Args:
            ranks: int64 [n], their numbers among those, in range.
        """
        if self._table is not None:
            return self._table[ranks].astype(np.int64)
        blocks = np.searchsorted(self._before, ranks, side="right") - 1
        left = ranks - self._before[blocks]
        words = self._words[blocks]
        word, left = _nth(np.bitwise_count(words), left)
        chosen = words[np.arange(len(ranks)), word].astype("<u8", copy=False)
        octets = chosen[:, None].view(np.uint8)
        octet, left = _nth(np.bitwise_count(octets), left)
        bit = _places_in_byte()[octets[np.arange(len(ranks)), octet], left]
        return blocks * _BLOCK_BITS + 64 * word + 8 * octet + bit

    def ranks(self, numbers: IntArray) -> IntArray:
        """Returns how many selected records come before each of some numbers."""
        if not self.total:
            return np.zeros(len(numbers), np.int64)
        blocks, within = np.divmod(numbers, _BLOCK_BITS)
        inside = np.minimum(blocks, len(self._words) - 1)
        words = self._words[inside]
        bits = np.clip(within[:, None] - 64 * np.arange(_BLOCK_WORDS), 0, 64)
        # A shift by 64 is not defined.
        kept = np.left_shift(np.uint64(1), (bits % 64).astype(np.uint64)) - np.uint64(1)
        kept = np.where(bits == 64, ~np.uint64(0), kept)
        here = np.bitwise_count(words & kept).sum(axis=1, dtype=np.int64)
        return self._before[blocks] + np.where(blocks == inside, here, 0)

    def has(self, numbers: IntArray) -> npt.NDArray[np.bool_]:
        """Returns whether each of some numbers was selected."""
        words = self.words[numbers // 64]
        found = words >> (numbers % 64).astype(np.uint64) & np.uint64(1)
        return found.astype(np.bool_)


def _nth(counts: npt.NDArray[np.uint8], ranks: IntArray) -> tuple[IntArray, IntArray]:
    """Returns in which part the bit of a rank is, and its rank there.

    Args:
        counts: uint8 [n, parts], bits of each part that are set.
        ranks: int64 [n], numbers among all those bits.
    """
    ends = np.cumsum(counts, axis=1, dtype=np.int64)
    parts = (ends <= ranks[:, None]).sum(axis=1)
    rows = np.arange(len(ranks))
    return parts, ranks - ends[rows, parts] + counts[rows, parts]
