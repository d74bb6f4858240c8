"""The files of a dataset as the storage lists them: as columns, for millions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

_BLOCK = 8_192
_NO_CRC32C = -1

Names = npt.NDArray[np.bytes_]


@dataclasses.dataclass(frozen=True)
class Listing:
    """The files in one directory. Takes as much memory as their names, and 16 bytes.

    Attributes:
        names: [files], their names in UTF-8, sorted.
        sizes: int64 [files], their sizes.
        crc32cs: int64 [files], their checksums, -1 where the storage keeps none.
    """

    names: Names
    sizes: npt.NDArray[np.int64]
    crc32cs: npt.NDArray[np.int64]

    @classmethod
    def of(cls, infos: Iterable[FileInfo]) -> Self:
        """Lists files of one directory."""
        names, numbers = [np.empty(0, "S1")], [np.empty((0, 2), np.int64)]
        for block in blocks(infos):
            names.append(encode_names(info.path.rpartition("/")[2] for info in block))
            facts = [
                (info.size_bytes, _NO_CRC32C if info.crc32c is None else info.crc32c)
                for info in block
            ]
            numbers.append(np.array(facts, np.int64))
        joined = np.concatenate(names)
        order = np.argsort(joined)
        columns = np.concatenate(numbers)[order]
        return cls(joined[order], columns[:, 0].copy(), columns[:, 1].copy())

    @classmethod
    def joined(cls, listings: Sequence[Listing]) -> Self:
        """Returns one listing of the files of several; each file once."""
        names, rows = np.unique(
            np.concatenate([listing.names for listing in listings]), return_index=True
        )
        sizes = np.concatenate([listing.sizes for listing in listings])
        crc32cs = np.concatenate([listing.crc32cs for listing in listings])
        return cls(names, sizes[rows], crc32cs[rows])

    def find(self, names: Names) -> npt.NDArray[np.int64]:
        """Returns the places of files in the listing, -1 for missing ones.

        Args:
            names: [n], their names in UTF-8.
        """
        return find_names(self.names, names)

    def has(self, file: str) -> bool:
        """Returns whether a file is in the listing."""
        return bool(self.find(encode_names([file]))[0] >= 0)

    def with_prefix(self, prefix: str) -> Names:
        """Returns the names that begin with a text."""
        begin = _encoded(prefix)
        # No byte of UTF-8 is 0xff.
        ends = np.array([begin, begin + b"\xff"])
        first, last = np.searchsorted(self.names, ends)
        return self.names[first:last]

    def with_suffix(self, suffix: str) -> list[str]:
        """Returns the names that end with a text."""
        found = self.names[np.char.endswith(self.names, _encoded(suffix))]
        return [decode_name(name) for name in found]


def encode_names(names: Iterable[str]) -> Names:
    """Returns names as one array, in UTF-8, padded with zeros to the longest."""
    found = [np.array([*map(_encoded, block)]) for block in blocks(names)]
    return np.concatenate([np.empty(0, "S1"), *found])


def find_names(names: Names, wanted: Names) -> npt.NDArray[np.int64]:
    """Returns the places of names among sorted ones, -1 for those not among them."""
    if not len(names):
        return np.full(len(wanted), -1)
    # As wide as `names`, or these would be copied: who is cut is not found.
    rows = np.searchsorted(names, wanted.astype(names.dtype))
    rows[rows == len(names)] = 0
    rows[names[rows] != wanted] = -1
    return rows


def decode_name(name: bytes) -> str:
    """Returns a name of such an array as text."""
    return name.decode("utf-8", "surrogateescape")


class Listings:
    """The files of a dataset as the storage lists them: each directory once.

    Args:
        dataset: The dataset's directory.
        prefix: How the names of the files begin; others are left out.
    """

    def __init__(self, dataset: str, prefix: str = ""):
        self._dataset, self._prefix = dataset, prefix
        self._directories: dict[str, Listing] = {}

    def of(self, directory: str) -> Listing:
        """Returns the files of a directory of the dataset."""
        if directory not in self._directories:
            place = layout.join(self._dataset, directory)
            found = storage_for(self._dataset).scan(place, prefix=self._prefix)
            listing = Listing.of(found)
            self._directories[directory] = listing
        return self._directories[directory]

    def find(
        self, paths: Iterable[str]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the sizes and checksums of files, int64 [files] each.

        The size is -1 for a file that is not there, and the checksum where there is
        none. Takes as much memory as that, beside the listings.

        Args:
            paths: The files, relative to the dataset.
        """
        found = [np.empty((0, 2), np.int64)]
        for block in blocks(paths):
            places: dict[str, list[int]] = {}
            split = [path.rpartition("/") for path in block]
            for place, (folder, _, _) in enumerate(split):
                places.setdefault(folder, []).append(place)
            names = encode_names(name for _, _, name in split)
            facts = np.full((len(block), 2), -1)
            for folder, here in places.items():
                listing = self.of(folder)
                rows = listing.find(names[here])
                there = np.array(here)[rows >= 0]
                facts[there, 0] = listing.sizes[rows[rows >= 0]]
                facts[there, 1] = listing.crc32cs[rows[rows >= 0]]
            found.append(facts)
        sizes, crc32cs = np.concatenate(found).T
        return sizes, crc32cs


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def blocks(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields items some thousands at a time."""
    waiting = iter(items)
    while block := list(itertools.islice(waiting, _BLOCK)):
        yield block
