"""Records in a local file, read back in an order that depends on them alone.

A shuffle delivers a group's records in any order. To write the same bytes whenever the
same records come, they have to be sorted, and a shard of them need not fit in memory.
So the records go to a file as they come, and only what decides their order is kept.
"""

from __future__ import annotations

import array
import contextlib
import os
from collections.abc import Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError, StorageError

_BATCH_RECORDS = 1024
_BATCH_BYTES = 4 << 20


class RecordSpool:
    """Takes records in any order, and yields them by order key, then content hash.

    Memory: 28 bytes a record while they come, and some 130 at most while they are
    sorted; where records have order keys, 50 bytes more and the key. Disk: the
    records, in one file.

    Args:
        path: Local file to create.
    """

    def __init__(self, path: str):
        self._path = path
        self._keys: list[bytes] = []
        self._hashes = bytearray()
        self._offsets = array.array("Q", [0])
        self._crc32cs = array.array("I")
        try:
            self._file = open(path, "w+b", buffering=1 << 20)  # noqa: SIM115
        except OSError as e:
            raise self._failed(e) from e

    def close(self) -> None:
        """Closes the file."""
        # This writes buffered data, which fails on a full disk. That error was already
        # raised.
        with contextlib.suppress(OSError):
            self._file.close()

    def __len__(self) -> int:
        return len(self._crc32cs)

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            "cannot keep records on the way into a shard",
            where=self._path,
            got=error.strerror or str(error),
            cure="free some space, then run again: a shard needs disk for its records "
            "and for its own file",
        )

    def add(self, record: bytes, place: bytes, order_key: bytes | None = None) -> None:
        """Takes one record.

        Args:
            record: The record.
            place: The hash of its content.
            order_key: What it is sorted by before its content. For all records or none.
        """
        try:
            self._file.write(record)
        except OSError as e:
            raise self._failed(e) from e
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
        """
        try:
            self._file.flush()
        except OSError as e:
            raise self._failed(e) from e
        descriptor = self._file.fileno()
        records: list[bytes] = []
        crc32cs: list[int] = []
        size = 0
        for number in order.tolist():
            begin, end = self._offsets[number], self._offsets[number + 1]
            record = os.pread(descriptor, end - begin, begin)
            crc32c = self._crc32cs[number]
            if google_crc32c.value(record) != crc32c:
                raise DataLossError(
                    "records changed on the way into a shard",
                    where=f"{self._path}, byte offset {begin:,}",
                    expected=f"crc32c {crc32c:#010x} of {end - begin:,} bytes",
                    got=f"{google_crc32c.value(record):#010x} of {len(record):,}",
                    cure="check disk and memory of this machine, then run again",
                )
            records.append(record)
            crc32cs.append(crc32c)
            size += len(record)
            if len(records) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
                yield records, crc32cs
                records, crc32cs, size = [], [], 0
        if records:
            yield records, crc32cs
