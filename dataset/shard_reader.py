"""Reading records of a committed dataset one shard at a time, in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gristmill.dataset.arrayrecord.chunks import decode_chunks
from gristmill.dataset.arrayrecord.footer import logical_chunks, read_footer
from gristmill.dataset.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.dataset.storage.lookup import storage_for


def first_records(dataset: str, split: str, count: int) -> Iterator[bytes]:
    """Yields the first records of a split.

    Args:
        dataset: A committed dataset.
        split: One of its splits.
        count: How many, at most.

    Raises:
        NotADatasetError: The dataset is not committed.
        InputError: It has no such split.
    """
    manifest = open_manifest(dataset)
    if split not in manifest.splits:
        raise InputError(
            "no such split",
            where=dataset,
            expected=", ".join(manifest.splits),
            got=split,
            cure="choose one with --split",
        )
    table = read_table(dataset, manifest.splits[split])
    storage = storage_for(dataset)
    for shard, relative in enumerate(table.paths):
        path = layout.join(dataset, layout.check_relative(relative, where=dataset))
        if count <= 0:
            return
        size = int(table.file_bytes[shard])

        def read(begin: int, end: int, path: str = path) -> bytes:
            return storage.read(path, begin, end)

        footer = read_footer(read, size, path=path)
        ends = np.cumsum(footer.chunk_records)
        # Chunk by chunk: a few records do not need a window of megabytes.
        for chunk in range(len(ends)):
            offsets = footer.chunk_offsets[chunk : chunk + 2]
            data = read(int(offsets[0]), int(offsets[1]))
            buffer, starts = logical_chunks(data, footer, chunk, chunk + 1)
            records = decode_chunks(
                buffer,
                starts,
                path=path,
                first_chunk=chunk,
                chunk_records=footer.chunk_records[chunk : chunk + 1],
            )
            for record in records:
                if count <= 0:
                    return
                yield record
                count -= 1
