"""The list of records that an edition leaves out of the one it was made from.

It is kept when the files of that other edition are deleted: the numbers tell a reader
of that edition what is left, and the digests tell what was removed.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import load_arrays
from gristmill.dataset.base.digest import lanes_of
from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for

VERSION = 1
_TYPES = {"records": "<i8", "digest_low": "<u8", "digest_high": "<u8"}
_CURE = "restore the file from a copy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemovedRecords:
    """Records that were removed from an edition. All are [removed].

    Attributes:
        records: int64, ascending: their numbers among the records of that edition.
        digest_low: uint64, the first lane of the digest of each.
        digest_high: uint64, the second.
    """

    records: npt.NDArray[np.int64]
    digest_low: npt.NDArray[np.uint64]
    digest_high: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, records: npt.NDArray[np.int64], words: npt.NDArray[np.uint64]) -> Self:
        """Returns the list of records.

        Args:
            records: int64 [removed], their numbers, ascending.
            words: uint64 [removed], as `digest.words_of` returns them.
        """
        low, high = lanes_of(words)
        return cls(records=records, digest_low=low, digest_high=high)

    @property
    def digest_hex(self) -> str:
        """The digest of all of them, as in `RecordsDigest.hex`."""
        low, high = (
            int(np.sum(lane, dtype=np.uint64))
            for lane in (self.digest_low, self.digest_high)
        )
        return f"{high:016x}{low:016x}"

    def encode(self) -> bytes:
        """Returns the list as the bytes of its file."""
        out = io.BytesIO()
        arrays: dict[str, Any] = {"version": np.array(VERSION)}
        arrays |= {
            name: getattr(self, name).astype(dtype) for name, dtype in _TYPES.items()
        }
        np.savez_compressed(out, **arrays)
        return out.getvalue()

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> Self:
        """Parses a list.

        Raises:
            InvalidDatasetError: It is damaged.
            FormatVersionError: Its version is unknown.
        """
        arrays = load_arrays(data, where=where, version=VERSION)
        columns = {name: arrays.get(name, np.empty((0, 0))) for name in _TYPES}
        numbers = columns["records"]
        if (
            any(
                column.dtype != _TYPES[name] or column.shape != (numbers.size,)
                for name, column in columns.items()
            )
            or not (numbers[:1] >= 0).all()
            or not (numbers[1:] > numbers[:-1]).all()
        ):
            raise InvalidDatasetError(
                "list of removed records is damaged", where=where, cure=_CURE
            )
        return cls(**columns)


def read_removed(dataset: str, removed: Mapping[str, Any]) -> RemovedRecords:
    """Reads the list of a removal.

    Args:
        dataset: The dataset's directory.
        removed: Its `Split.removed`.

    Raises:
        InvalidDatasetError: The list is damaged, or not the one of this removal.
        StorageError: It cannot be read.
    """
    place = layout.join(dataset, layout.DATASET_JSON)
    relative = layout.check_relative(str(removed.get("list")), where=place)
    path = layout.join(dataset, relative)
    found = RemovedRecords.decode(storage_for(path).read(path), where=path)
    got = len(found.records), found.digest_hex
    expected = removed.get("records"), removed.get("records_digest")
    if got != expected:
        raise InvalidDatasetError(
            "list of removed records is not the one that dataset.json describes",
            where=path,
            expected=f"{expected[0]} records, digest {expected[1]}",
            got=f"{got[0]} records, digest {got[1]}",
            cure=_CURE,
        )
    return found
