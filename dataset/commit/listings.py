"""Listings of a dataset's files by their kinds, and their comparison with a table."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InvalidDatasetError,
    StorageMissingError,
)
from gristmill.dataset.base.findings import Finding, Findings, finding_of, wrong_size
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import (
    ERRORS,
    INDEX,
    SEGMENTS,
    SHARD,
    Kind,
    parser,
)
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
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

    def without(self, names: Names) -> Listing:
        """Returns a listing without some files, whether they are in it or not."""
        rows, kept = self.find(names), np.ones(len(self.names), bool)
        kept[rows[rows >= 0]] = False
        return Listing(self.names[kept], self.sizes[kept], self.crc32cs[kept])

    def has(self, file: str) -> bool:
        """Returns whether a file is in the listing."""
        return bool(self.find(encode_names([file]))[0] >= 0)

    def with_ends(self, prefix: str, suffixes: tuple[str, ...] = ("",)) -> Names:
        """Returns the names that begin with a text and end with one of some."""
        begin = _encoded(prefix)
        # No byte of UTF-8 is 0xff.
        first, last = np.searchsorted(self.names, np.array([begin, begin + b"\xff"]))
        names = self.names[first:last]
        if "" in suffixes:
            return names
        ends = [np.strings.endswith(names, _encoded(suffix)) for suffix in suffixes]
        return names[np.logical_or.reduce(ends)]


def encode_names(names: Iterable[str]) -> Names:
    """Returns names as one array, in UTF-8, padded with zeros to the longest."""
    found = [np.array([*map(_encoded, block)]) for block in blocks(names)]
    return np.concatenate([np.empty(0, "S1"), *found])


def find_names(names: Names, wanted: Names) -> npt.NDArray[np.int64]:
    """Returns the places of names among sorted ones, -1 for those not among them."""
    if not len(names):
        return np.full(len(wanted), -1)
    # As wide as `names`, or these would be copied: a name cut short is not found.
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
        prefix: Prefix of the names of files; others are left out.
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

    def without(self, shards: Names) -> Listings:
        """Returns listings without some shards and the files of each beside it.

        Values of columns stay, as an edition may have attached others since.
        """
        rest = Listings(self._dataset, self._prefix)
        rest._directories = {**self._directories}
        for kind in (SHARD, INDEX, SEGMENTS, ERRORS):
            files = np.strings.add(shards, _encoded(kind.suffix))
            here = rest.of(kind.directory).without(files)
            rest._directories[kind.directory] = here
        return rest

    def scan(
        self, directory: str, prefix: str, suffixes: tuple[str, ...] = ("",)
    ) -> Iterator[FileInfo]:
        """Yields the files of a directory whose names have such ends."""
        begin = layout.join(self._dataset, directory, "")
        for name in self.of(directory).with_ends(prefix, suffixes):
            yield FileInfo(begin + decode_name(name), 0)

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


class Found(NamedTuple):
    """A file of a dataset.

    Attributes:
        info: The file.
        path: Its path in the dataset.
        kind: Its kind.
        parts: The parts of its path, as the kind's pattern names them.
    """

    info: FileInfo
    path: str
    kind: Kind
    parts: Mapping[str, str]


def walk(
    dataset: str,
    kinds: Sequence[Kind],
    known: Mapping[str, str] = MappingProxyType({}),
    *,
    listings: Listings | None = None,
    prefix: str = "",
) -> Iterator[Found]:
    """Yields the files of a dataset of some kinds, directory by directory.

    Args:
        dataset: The dataset's directory.
        kinds: The kinds.
        known: Parts that their paths must have.
        listings: Listings of its files; by default they are listed now.
        prefix: How the names of the files begin.

    Raises:
        InvalidDatasetError: A directory is a symbolic link. It is not followed, as
            files found may be deleted.
    """
    own = layout.join(dataset, "")
    for directory in dict.fromkeys(kind.directory for kind in kinds):
        here = [
            (one, one.suffix, parser(one.pattern, **known))
            for one in kinds
            if one.directory == directory
        ]
        begins = [one.prefix(**known).rpartition("/")[2] for one, _, _ in here]
        begin, ends = prefix or _common_prefix(begins), tuple(end for _, end, _ in here)
        place = layout.join(dataset, directory)
        if listings is not None:
            found: Iterable[FileInfo] = listings.scan(directory, begin, ends)
        else:
            check_no_link(place, directory)
            found = storage_for(dataset).scan(place, prefix=begin, suffixes=ends)
        for info in found:
            path = info.path[len(own) :]
            for kind, suffix, parse in here:
                if path.endswith(suffix) and (parts := parse(path)):
                    yield Found(info, path, kind, parts)


def check_no_link(place: str, directory: str) -> None:
    """Raises InvalidDatasetError if a directory of a dataset is a symbolic link."""
    if directory and "://" not in place and os.path.islink(place):
        raise InvalidDatasetError(
            "a directory of the dataset is a symbolic link",
            where=place,
            expected="files of the dataset in the dataset",
            got=f"a link to {os.readlink(place)}",
            cure="move that directory to the place of the link; nothing is deleted "
            "where it leads",
        )


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def blocks(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields items some thousands at a time."""
    waiting = iter(items)
    while block := list(itertools.islice(waiting, _BLOCK)):
        yield block


def check_split(dataset: str, split: Split) -> Findings:
    """Compares the table of one split with listings: opens no shard, and no manifest.

    The dataset need not be committed yet.

    Returns:
        Shards and indexes that are missing or not the ones that were written, or why
        the table cannot be read.

    Raises:
        StorageError: The storage cannot list files.
    """
    findings = Findings()
    try:
        table = read_table(dataset, split)
    except (InvalidDatasetError, FormatVersionError, StorageMissingError) as error:
        return findings.add([finding_of(split.table, error)])
    prefix = _common_prefix(list(table.paths))
    for compare in (compare_shards, compare_indexes):  # One listing after the other.
        for finding in compare(table, Listings(dataset, prefix)):
            findings.add([finding])
    return findings


def _common_prefix(paths: list[str]) -> str:
    """Returns the common prefix of paths: an edition may have a few of a million."""
    if not paths or any("/" in path for path in paths):
        return ""  # A prefix is of names in one directory.
    return os.path.commonprefix([min(paths), max(paths)])  # noqa: RUF071


def compare_shards(table: ShardTable, listings: Listings) -> Iterator[Finding]:
    """Compares size and checksum of every shard with what the storage lists."""
    return compare_files("shard", table.paths, table.columns, listings)


def compare_indexes(table: ShardTable, listings: Listings) -> Iterator[Finding]:
    """Finds the indexes of shards that are missing, and segment indexes of others."""
    sizes, _ = listings.find(map(layout.index_path, table.paths))
    for shard in np.flatnonzero(sizes < 0).tolist():
        path = layout.index_path(table.paths[shard])
        yield Finding(path, "shard index is missing")
    if table.is_packed:
        columns = {
            name.replace("segments", "file"): table.columns[name]
            for name in ("segments_bytes", "segments_crc32c")
        }
        paths = [*map(layout.segments_path, table.paths)]
        yield from compare_files("segment index", paths, columns, listings)


def compare_files(
    what: str,
    paths: Sequence[str],
    columns: Mapping[str, npt.NDArray[Any]],
    listings: Listings,
) -> Iterator[Finding]:
    """Compares files, one of each shard, with what the storage lists.

    Args:
        what: What they are, for messages.
        paths: The files, relative to the dataset.
        columns: Their sizes, `file_bytes`, and checksums, `file_crc32c`.
        listings: Listings of the dataset's files.
    """
    expected_sizes = columns["file_bytes"]
    expected_crc32cs = columns["file_crc32c"].astype(np.int64)
    sizes, crc32cs = listings.find(paths)
    wrong = sizes != expected_sizes
    # Buckets keep a checksum of every object; a local disk has none.
    other = (crc32cs >= 0) & (crc32cs != expected_crc32cs)
    for shard in np.flatnonzero(wrong | other).tolist():
        path, size = paths[shard], int(sizes[shard])
        if size < 0:
            yield Finding(path, f"{what} is missing")
        elif wrong[shard]:
            yield wrong_size(path, int(expected_sizes[shard]), size, what=what)
        else:
            yield Finding(
                path,
                f"{what} is not the file that was written",
                expected=f"crc32c {expected_crc32cs[shard]:#010x}",
                got=f"{crc32cs[shard]:#010x}",
            )
