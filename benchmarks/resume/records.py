"""The records that every loader of the test of resuming reads, in its own format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.resume.protocol import Numbers

SHARDS = 16
ADDED_SHARDS = 2
# Numbers of the records of another dataset begin here.
OTHER = 1_000_000


def lengths(numbers: Numbers) -> Numbers:
    """Returns how many tokens records have, 8 to 56, by their numbers."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (8 + (mixed >> np.uint64(40)) % np.uint64(49)).astype(np.int64)


def shards_of(first: int, shards: int, shard_records: int) -> Iterator[list[bytes]]:
    """Yields the records of shards, whose numbers follow each other."""
    for shard in range(shards):
        begin = first + shard * shard_records
        numbers = np.arange(begin, begin + shard_records)
        yield [
            np.full(length, number, "<u4").tobytes()
            for number, length in zip(
                numbers.tolist(), lengths(numbers).tolist(), strict=True
            )
        ]
