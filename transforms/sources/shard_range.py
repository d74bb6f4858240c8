"""Reading a range of the chunks of an ArrayRecord file, and checking its records.

Records of a dataset are compared with the checksums in its indexes; of other files, the
hashes of their chunks are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import Footer, read_footer
from gristmill.dataset.arrayrecord.walk import chunk_ranges, walk_chunks
from gristmill.dataset.errors import CorruptShardError, StorageError
from gristmill.dataset.metadata.shard_index import parse_index
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.shard_list import ListedShard


class ChunkRange(NamedTuple):
    """Chunks [first_chunk, last_chunk) of a shard."""

    shard: ListedShard
    first_chunk: int
    last_chunk: int


def cut_at_chunks(shard: ListedShard, range_bytes: int) -> Iterator[ChunkRange]:
    """Yields the ranges of a shard.

    Args:
        shard: The file.
        range_bytes: About how many bytes of it each has.

    Raises:
        CorruptShardError: The shard is missing or damaged.
    """
    footer, _ = _footer_of(shard)
    for first, last in chunk_ranges(footer, range_bytes=range_bytes):
        yield ChunkRange(shard, first, last)


def read_chunks(
    shard: ListedShard, first_chunk: int, last_chunk: int
) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the records of a run of chunks, with the number of each batch's first.

    Args:
        shard: The file.
        first_chunk: First chunk.
        last_chunk: Chunk after the last.

    Raises:
        CorruptShardError: The shard or its index is damaged.
    """
    footer, version = _footer_of(shard)
    begin, end = footer.chunk_offsets[[first_chunk, last_chunk]].tolist()
    with storage_for(shard.path).open(
        shard.path, offset=begin, end=end, version=version
    ) as file:
        # While the first blocks arrive from a bucket.
        crc32cs = _crc32cs_of(shard)
        for chunks in walk_chunks(
            file,
            footer,
            path=shard.path,
            first_chunk=first_chunk,
            last_chunk=last_chunk,
        ):
            first_record = chunks.first_record
            for records in chunks.decode(hashed=crc32cs is None):
                if crc32cs is not None:
                    _check(shard, first_record, records, crc32cs)
                yield first_record, records
                first_record += len(records)


def _footer_of(shard: ListedShard) -> tuple[Footer, str]:
    """Returns the footer of a shard, and the shard's version."""
    storage = storage_for(shard.path)
    info = storage.stat(shard.path)
    if info is None or info.size_bytes != shard.size_bytes:
        raise CorruptShardError(
            "shard is missing, or has the wrong size",
            where=shard.path,
            expected=f"{shard.size_bytes:,} bytes",
            got="no file" if info is None else f"{info.size_bytes:,} bytes",
            cure="restore it from a copy, or run the conversion again",
        )
    read = functools.partial(storage.read, shard.path)
    hashed = shard.index_path is None
    footer = read_footer(read, shard.size_bytes, path=shard.path, hashed=hashed)
    if shard.records is not None and footer.records != shard.records:
        raise CorruptShardError(
            "shard is not the one that the dataset describes",
            where=shard.path,
            expected=f"{shard.records:,} records",
            got=f"{footer.records:,}",
            cure="restore it from a copy, or run the conversion again",
        )
    return footer, info.version


def _crc32cs_of(shard: ListedShard) -> npt.NDArray[np.uint32] | None:
    """Returns uint32 [records] from the shard's index, None if it has none."""
    if shard.index_path is None:
        return None
    try:
        data = storage_for(shard.index_path).read(shard.index_path)
    except StorageError as error:
        raise StorageError(
            "cannot read the index of a shard",
            where=shard.index_path,
            got=error.summary,
            cure="restore it from a copy; gristmill verify lists what is missing",
        ) from error
    index = parse_index(data, path=shard.index_path)
    index.check()
    expected = shard.records, shard.size_bytes, shard.file_crc32c
    found = index.records, index.file_bytes, index.file_crc32c
    if found != expected:
        text = "{:,} records in {:,} bytes with crc32c {:#010x}"
        raise CorruptShardError(
            "shard index is not the one of this shard",
            where=shard.index_path,
            expected=text.format(*expected),
            got=text.format(*found),
            cure="if the dataset was replaced meanwhile, run the pipeline again; "
            "otherwise restore the index from a copy, or run the conversion again",
        )
    return index.crc32cs


def _check(
    shard: ListedShard,
    first_record: int,
    records: Sequence[bytes],
    crc32cs: npt.NDArray[np.uint32],
) -> None:
    got = np.array([google_crc32c.value(record) for record in records], np.uint32)
    expected = crc32cs[first_record : first_record + len(records)]
    different = np.flatnonzero(expected != got)
    if len(different):
        at = int(different[0])
        raise CorruptShardError(
            "record is not the one that was written",
            where=f"{shard.path}, record {first_record + at:,}",
            expected=f"crc32c {expected[at]:#010x}, as in the shard's index",
            got=f"{got[at]:#010x}",
            cure="restore the shard from a copy, or run the conversion again; "
            "gristmill verify lists all damage",
        )
