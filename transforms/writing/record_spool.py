"""Records in a local file, read back in an order that depends on them alone.

A shuffle delivers a group's records in any order. To write the same bytes whenever the
same records come, they have to be sorted, and a shard of them need not fit in memory.
So the records go to a file as they come, and only what decides their order is kept.
"""

from __future__ import annotations

import array
from collections.abc import Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError

_BATCH_RECORDS = 1024
_BATCH_BYTES = 4 << 20


class RecordSpool:
    """Takes records in any order, and yields them by order key, then content hash.

    Memory: 28 bytes a record while they come, and some 130 at most while they are
    sorted; where records have order keys, 50 bytes more and the key. Disk: the
    records, in an unnamed file.

    Args:
        directory: Local directory of the file.

    Raises:
        StorageError: The directory is missing or full.
    """

    def __init__(self, directory: str):
        self._directory = directory
        self._keys: list[bytes] = []
        self._hashes = bytearray()
        self._offsets = array.array("Q", [0])
        self._crc32cs = array.array("I")
        self._data = ArraySpool(directory, np.uint8, kept="records")

    def close(self) -> None:
        """Deletes the file."""
        self._data.close()

    def __len__(self) -> int:
        return len(self._crc32cs)

    def add(self, record: bytes, place: bytes, order_key: bytes | None = None) -> None:
        """Takes one record.

        Args:
            record: The record.
            place: The hash of its content.
            order_key: What it is sorted by before its content. For all records or none.
        """
        self._data.append(np.frombuffer(record, np.uint8))
        self._offsets.append(self._offsets[-1] + len(record))
        self._crc32cs.append(google_crc32c.value(record))
        self._hashes += place
        if order_key is not None:
            self._keys.append(order_key)

    @property
    def _lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(np.frombuffer(self._offsets, np.uint64)).astype(np.int64)

    @property
    def digest(self) -> RecordsDigest:
        """Digest of all records."""
        return RecordsDigest.of(np.frombuffer(self._crc32cs, np.uint32), self._lengths)

    def order(self) -> npt.NDArray[np.int64]:
        """Returns int64 [records]: which record, as they came, is first, second, ..."""
        high, low = np.frombuffer(self._hashes, ">u8").reshape(-1, 2).T
        order = np.lexsort((low, high))
        if self._keys:
            # Both sorts are stable: equal keys keep the order of their contents.
            keys = self._keys
            order = np.array(sorted(order.tolist(), key=keys.__getitem__), np.int64)
        return order

    def cuts(self, order: npt.NDArray[np.int64], parts: int) -> list[int]:
        """Returns where to cut records into parts of roughly equal bytes.

        Args:
            order: int64 [records], as `order` gives it.
            parts: Number of parts.

        Returns:
            [parts + 1], positions in the order. A part has at most its share of the
            bytes and one record.
        """
        lengths = self._lengths[order]
        begins = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        targets = [total * part // parts for part in range(1, parts)]
        # A record belongs to the part of its first byte.
        inner = np.searchsorted(begins, targets, side="left").tolist()
        return [0, *inner, len(order)]

    def batches(
        self, order: npt.NDArray[np.int64]
    ) -> Iterator[tuple[list[bytes], list[int]]]:
        """Yields records with their checksums, some megabytes at a time.

        Args:
            order: int64 [n], which records.

        Raises:
            DataLossError: The file does not hold what was written to it.
            StorageError: The file cannot be read, or is shorter than it was.
        """
        lengths = self._lengths[order]
        begins = np.frombuffer(self._offsets, np.uint64)[order].astype(np.int64)
        crc32cs = np.frombuffer(self._crc32cs, np.uint32)[order]
        sums = np.cumsum(lengths)
        begin = 0
        while begin < len(order):
            done = int(sums[begin - 1]) if begin else 0
            # The record that reaches the size is the last of a batch.
            end = 1 + int(np.searchsorted(sums, done + _BATCH_BYTES))
            rows = slice(begin, min(end, begin + _BATCH_RECORDS))
            records = self._data.runs(begins[rows], begins[rows] + lengths[rows])
            expected = crc32cs[rows].tolist()
            if (found := [*map(google_crc32c.value, records)]) != expected:
                wrong = next(n for n, c in enumerate(found) if c != expected[n])
                size, place = len(records[wrong]), int(begins[rows][wrong])
                raise DataLossError(
                    "records changed on the way into a shard",
                    where=f"a file in {self._directory}, byte offset {place:,}",
                    expected=f"crc32c {expected[wrong]:#010x} of {size:,} bytes",
                    got=f"{found[wrong]:#010x}",
                    cure="check disk and memory of this machine, then run again",
                )
            yield records, expected
            begin += len(records)
