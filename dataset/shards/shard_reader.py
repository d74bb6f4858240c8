"""A reader of a committed dataset, one shard at a time, in order."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.arrayrecord.walk import walk_chunks
from gristmill.dataset.base.errors import InputError, StorageMissingError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    check_not_replaced,
    read_split_table,
)
from gristmill.dataset.metadata.open_manifest import open_manifest, state_of
from gristmill.dataset.shards.open_shard import stored_footer
from gristmill.dataset.storage.lookup import storage_for


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
