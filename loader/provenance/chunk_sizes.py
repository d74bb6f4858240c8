"""Records and bytes of a range of records, by the chunks of a shard."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from gristmill.dataset.arrayrecord.footer import Footer, read_footer
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.base.indices import IntArray


def records_and_bytes(
    footer: Footer,
    begin: int,
    end: int,
    lengths_of: Callable[[int, int], Sequence[int]],
) -> IntArray:
    """Returns int64 [chunks, 2], how many records and bytes of a range each chunk has.

    Args:
        footer: That of the shard.
        begin: Number, in the shard, of the first record of the range.
        end: Number after its last record.
        lengths_of: Returns the bytes of each record between two numbers, counted from
            `begin`. It is asked for chunks that reach out of the range.
    """
    ends = np.cumsum(footer.chunk_records)
    begins = ends - footer.chunk_records
    chunks = slice(
        int(np.searchsorted(ends, begin, side="right")),
        int(np.searchsorted(begins, end, side="left")),
    )
    firsts, lasts = np.maximum(begins[chunks], begin), np.minimum(ends[chunks], end)
    sizes = footer.chunk_decoded_bytes[chunks].copy()
    for chunk in np.flatnonzero(lasts - firsts < footer.chunk_records[chunks]).tolist():
        part = lengths_of(int(firsts[chunk]) - begin, int(lasts[chunk]) - begin)
        sizes[chunk] = sum(part)
    return np.stack([lasts - firsts, sizes], axis=1)


@functools.lru_cache(maxsize=64)
def cached_footer(shard: str, file_bytes: int, digest: str | None) -> Footer:
    """Returns the footer of a shard of a size and a digest."""
    # Callers that locate one record often locate all of a batch.
    del digest  # In the key of the cache: a shard at this path may have been replaced.
    storage = storage_for(shard)
    return read_footer(
        lambda begin, end: storage.read(shard, begin, end), file_bytes, path=shard
    )
