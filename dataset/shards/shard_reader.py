"""Opening a shard with its index, the refusal of another one, and reads of its records.

All that open a shard of a dataset compare it and its index here with what the dataset
describes.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import Footer, read_footer, walk_chunks
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    StorageMissingError,
    some_of,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    check_not_replaced,
    read_split_table,
)
from gristmill.dataset.metadata.open_manifest import open_manifest, state_of
from gristmill.dataset.metadata.shard_index import ShardIndex, parse_index
from gristmill.dataset.storage.lookup import storage_for

_CURE = (
    "restore the shard and its index from a copy, or run the conversion again; if the "
    "dataset was replaced meanwhile, open it again"
)


class ShardFacts(NamedTuple):
    """What is known of a shard, None for what is not.

    Attributes:
        records: Its records.
        file_bytes: Its size.
        file_crc32c: The crc32c of its bytes.
    """

    records: int | None = None
    file_bytes: int | None = None
    file_crc32c: int | None = None

    def __str__(self) -> str:
        crc32c = self.file_crc32c
        facts = (
            None if self.records is None else f"{self.records:,} records",
            None if self.file_bytes is None else f"{self.file_bytes:,} bytes",
            None if crc32c is None else f"crc32c {crc32c:#010x}",
        )
        return ", ".join(fact for fact in facts if fact is not None)

    def differs(self, other: ShardFacts) -> bool:
        """Returns whether a fact is another one, of those that both know."""
        pairs = zip(self, other, strict=True)
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def known_in(self, other: ShardFacts) -> ShardFacts:
        """Returns the facts that another knows as well."""
        pairs = zip(self, other, strict=True)
        return ShardFacts(*(None if known is None else fact for fact, known in pairs))


def check_shard(described: ShardFacts, found: ShardFacts, *, where: str) -> None:
    """Raises CorruptShardError if a shard is not the one that a dataset describes."""
    if described.differs(found):
        raise CorruptShardError(
            "shard is not the one that the dataset describes",
            where=where,
            expected=described.known_in(found),
            got=found.known_in(described),
            cure=_CURE,
        )


def check_index(index: ShardIndex, described: ShardFacts) -> None:
    """Raises CorruptShardError if an index is not the one of a shard."""
    found = ShardFacts(index.records, index.file_bytes, index.file_crc32c)
    if described.differs(found):
        raise CorruptShardError(
            "shard index is not the one of this shard",
            where=index.path,
            expected=described,
            got=found.known_in(described),
            cure=_CURE,
        )


def read_index(path: str, described: ShardFacts) -> ShardIndex:
    """Reads the whole index of a shard.

    Raises:
        CorruptShardError: It is that of another shard.
        InvalidDatasetError: It is damaged.
        StorageError: It cannot be read.
    """
    index = parse_index(storage_for(path).read(path), path=path)
    index.check()
    check_index(index, described)
    return index


def stored_footer(path: str, size_bytes: int, *, hashed: bool = True) -> Footer:
    """Reads the footer of a shard of a size, by ranges.

    Raises:
        CorruptShardError: The file has another size, or its footer is damaged.
        StorageError: It cannot be read.
    """
    read = functools.partial(storage_for(path).read, path)
    return read_footer(read, size_bytes, path=path, hashed=hashed)


def first_records(dataset: str, split: str, count: int) -> Iterator[bytes]:
    """Yields the first `count` records of a split, as in `some_records`."""
    return some_records(dataset, split, [range(count)])


def some_records(
    dataset: str, split: str, ranges: Iterable[range], *, edition: int | None = None
) -> Iterator[bytes]:
    """Yields some records of a split of a committed dataset.

    Args:
        dataset: Its directory.
        split: The split.
        ranges: Ranges of record numbers in it, ascending. Missing ones are left out.
        edition: The split as it was when this edition was the newest; None for now.

    Raises:
        NotADatasetError: The dataset is not committed.
        InputError: There is no such split or edition.
        CorruptShardError: A chunk of these records is damaged.
        StorageMissingError: A shard is missing.
    """
    manifest = open_manifest(dataset)
    if split not in manifest.splits:
        raise InputError(
            "no such split",
            where=dataset,
            expected=some_of(manifest.splits, 20),
            got=split,
            cure="choose one with --split",
        )
    state = manifest.splits[split]
    if edition is not None:
        state = state_of(dataset, state, edition)
        manifest = dataclasses.replace(manifest, splits={split: state})
    table = read_split_table(dataset, manifest, split)
    storage = storage_for(dataset)
    ends = np.cumsum(table.records)
    opened: tuple[int, Footer] | None = None
    for shard, wanted in _by_shard(ranges, ends):
        path = layout.join(dataset, table.paths[shard])
        if opened is None or opened[0] != shard:
            try:
                footer = stored_footer(path, int(table.file_bytes[shard]))
            except StorageMissingError as e:
                check_not_replaced(dataset, split, state)
                raise StorageMissingError(
                    "a shard of the dataset is missing",
                    where=path,
                    got=e.got,
                    cure=f"`gristmill verify {shlex.quote(dataset)} --quick` names all "
                    "that are; restore them from a copy, or run the same conversion "
                    "again, which makes missing shards",
                ) from e
            opened = shard, footer
        footer = opened[1]
        chunk_ends = np.cumsum(footer.chunk_records)
        # A few records need no megabytes.
        first = int(np.searchsorted(chunk_ends, wanted.start, side="right"))
        last = min(int(np.searchsorted(chunk_ends, wanted.stop)) + 1, len(chunk_ends))
        begin, end = footer.chunk_offsets[[first, last]].tolist()
        with storage.open(path, offset=begin, end=end) as file:
            # Asked after the file is open: an open file stays the old one.
            check_not_replaced(dataset, split, state)
            # One chunk at a time: a damaged one withholds no earlier record.
            for chunks in walk_chunks(
                file,
                footer,
                path=path,
                first_chunk=first,
                last_chunk=last,
                range_bytes=1,
            ):
                at = chunks.first_record
                # No index is read, so the chunks' own hashes are compared.
                records = chunks.decode(hashed=True)
                yield from records[max(wanted.start - at, 0) : wanted.stop - at]


def _by_shard(
    ranges: Iterable[range], ends: npt.NDArray[np.int64]
) -> Iterator[tuple[int, range]]:
    """Yields ranges of records by shard and by their numbers in it.

    `ends` are the numbers of records up to the end of each shard.
    """
    for wanted in ranges:
        at, stop = wanted.start, min(wanted.stop, int(ends[-1]) if len(ends) else 0)
        while at < stop:
            shard = int(np.searchsorted(ends, at, side="right"))
            begin = int(ends[shard - 1]) if shard else 0
            end = min(stop, int(ends[shard]))
            yield shard, range(at - begin, end - begin)
            at = end
