"""A digest of a multiset of records, which adds up in any order."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DataLossError

_MASK = (1 << 64) - 1
_PACKED = struct.Struct("<qqQQ")
# A packed digest, as a row of an array.
DIGEST_ROW = np.dtype(
    [("records", "<i8"), ("raw_bytes", "<i8"), ("low", "<u8"), ("high", "<u8")]
)
# Keys of the two lanes: fractional bits of sqrt(2) and sqrt(3), as in SHA-512.
_LANE_KEYS = (0x6A09E667F3BCC908, 0xBB67AE8584CAA73B)


def _mix(values: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """Scrambles 64-bit values: the finaliser of SplitMix64 (Steele et al., 2014)."""
    mixed = values + np.uint64(key)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def lanes_of(
    words: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Returns the lanes of the digest of each record by itself: uint64 [records] each.

    Args:
        words: As `RecordsDigest.of_words` takes them.
    """
    low, high = (_mix(words, key) for key in _LANE_KEYS)
    return low, high


def words_of(
    crc32cs: npt.NDArray[np.uint32], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Returns checksum and length of each record in one number: uint64 [records]."""
    # The upper bits of lengths of 4 GiB and more are lost: no record is that long.
    return crc32cs.astype(np.uint64) | (lengths.astype(np.uint64) << np.uint64(32))


def check_crc32cs(
    records: Sequence[bytes], crc32cs: Sequence[int], where: Callable[[int], str]
) -> None:
    """Checks records on their way into a shard.

    Args:
        records: The records.
        crc32cs: The checksum of each, as it was read.
        where: Returns the place of a record, by its number among these.

    Raises:
        DataLossError: A record has another checksum.
    """
    found = [*map(google_crc32c.value, records)]
    if found == crc32cs:
        return
    at = next(n for n, got in enumerate(found) if got != crc32cs[n])
    raise DataLossError(
        "a record changed on the way into a shard",
        where=where(at),
        expected=f"crc32c {crc32cs[at]:#010x} of {len(records[at]):,} bytes",
        got=f"{found[at]:#010x}",
        cure="check disk and memory of this machine, then run again",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsDigest:
    """Number and bytes of a multiset of records, and a sum over all of them.

    Each record contributes a hash of its crc32c and its length, and the hashes are
    added modulo 2**128. So two digests are equal when the same records are there,
    in whatever order; digests of parts add up to the digest of the whole.

    It finds loss, duplication and corruption. It does not protect against records that
    were forged to match.

    Attributes:
        records: Number of records.
        raw_bytes: Their lengths, added.
        low: Sum of the first lane, modulo 2**64.
        high: Sum of the second lane, modulo 2**64.
    """

    records: int = 0
    raw_bytes: int = 0
    low: int = 0
    high: int = 0

    @classmethod
    def of(
        cls, crc32cs: npt.NDArray[np.uint32], lengths: npt.NDArray[np.int64]
    ) -> Self:
        """Returns the digest of records whose checksums and lengths are given.

        Args:
            crc32cs: uint32 [records], the crc32c of each record.
            lengths: int64 [records], the length of each record in bytes.
        """
        if len(crc32cs) != len(lengths):
            raise ValueError(f"{len(crc32cs)} checksums but {len(lengths)} lengths")
        return cls.of_words(words_of(crc32cs, lengths))

    @classmethod
    def of_words(cls, words: npt.NDArray[np.uint64]) -> Self:
        """Returns the digest of records given by checksum and length in one number.

        Args:
            words: uint64 [records], for each record its crc32c, and its length in
                bytes times 2**32.
        """
        low, high = (int(np.sum(lane, dtype=np.uint64)) for lane in lanes_of(words))
        raw_bytes = int(np.sum(words >> np.uint64(32), dtype=np.uint64))
        return cls(records=len(words), raw_bytes=raw_bytes, low=low, high=high)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Returns the digest that `pack` packed."""
        records, raw_bytes, low, high = _PACKED.unpack(data)
        return cls(records=records, raw_bytes=raw_bytes, low=low, high=high)

    def pack(self) -> bytes:
        """Returns 32 bytes: one row of an array of `DIGEST_ROW`."""
        return _PACKED.pack(self.records, self.raw_bytes, self.low, self.high)

    @classmethod
    def total(cls, parts: Iterable[RecordsDigest]) -> Self:
        """Returns the digest of all records of all parts."""
        records = raw_bytes = low = high = 0
        for part in parts:
            records += part.records
            raw_bytes += part.raw_bytes
            low += part.low
            high += part.high
        return cls(
            records=records, raw_bytes=raw_bytes, low=low & _MASK, high=high & _MASK
        )

    def __add__(self, other: RecordsDigest) -> RecordsDigest:
        return RecordsDigest.total((self, other))

    def __sub__(self, other: RecordsDigest) -> RecordsDigest:
        return RecordsDigest(
            records=self.records - other.records,
            raw_bytes=self.raw_bytes - other.raw_bytes,
            low=(self.low - other.low) & _MASK,
            high=(self.high - other.high) & _MASK,
        )

    @property
    def summary(self) -> str:
        """The digest as it appears in messages."""
        return f"{self.records:,} records, {self.raw_bytes:,} bytes, {self.hex}"

    @property
    def hex(self) -> str:
        """The 128 bits of the sum as 32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"
