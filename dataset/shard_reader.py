"""Reading records of a committed dataset one shard at a time, in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gristmill.dataset.arrayrecord.footer import read_footer
from gristmill.dataset.arrayrecord.walk import walk_chunks
from gristmill.dataset.errors import InputError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.read_manifest import (
    check_in_place,
    check_not_replaced,
    read_split_table,
)
from gristmill.dataset.storage.lookup import storage_for


def first_records(dataset: str, split: str, count: int) -> Iterator[bytes]:
    """Yields the first `count` records of a split of a committed dataset.

    Raises NotADatasetError if it is not committed, InputError if it has no such split.
    """
    manifest = open_manifest(dataset)
    check_in_place(dataset, manifest, [split])
    if split not in manifest.splits:
        raise InputError(
            "no such split",
            where=dataset,
            expected=some_of(manifest.splits, 20),
            got=split,
            cure="choose one with --split",
        )
    table = read_split_table(dataset, manifest, split)
    storage = storage_for(dataset)
    for shard, relative in enumerate(table.paths):
        path = layout.join(dataset, relative)
        if count <= 0:
            return
        size = int(table.file_bytes[shard])

        def read(begin: int, end: int, path: str = path) -> bytes:
            return storage.read(path, begin, end)

        footer = read_footer(read, size, path=path)
        ends = np.cumsum(footer.chunk_records)
        # A few records do not need megabytes.
        last = min(int(np.searchsorted(ends, count)) + 1, len(ends))
        begin, end = footer.chunk_offsets[[0, last]].tolist()
        with storage.open(path, offset=begin, end=end) as file:
            # Not before the file is open: what is open now stays the old one.
            check_not_replaced(dataset, split, manifest.splits[split])
            # One chunk at a time: a damaged one keeps no record before it back.
            for chunks in walk_chunks(
                file, footer, path=path, last_chunk=last, range_bytes=1
            ):
                # No index is read, so the chunks' own hashes are compared.
                for records in chunks.decode(hashed=True):
                    yield from records[:count]
                    count -= len(records[:count])
