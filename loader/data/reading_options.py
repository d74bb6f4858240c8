"""The way in which the caller of `open` wants records to be read."""

from __future__ import annotations

import dataclasses

import numpy as np

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.batch_reader import BatchReader, Verify
from gristmill.loader.reading.shard_list import ShardList
from gristmill.loader.remote.read_options import ReadOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class HowToRead:
    """Arguments of `open` that hold for all datasets it opens; see there."""

    verify: Verify | None
    options: ReadOptions | None
    cache_dir: str | None
    cache_bytes: int | None

    def reader(self, shards: ShardList) -> BatchReader:
        """Returns a reader of shards with these options."""
        return BatchReader(shards, verify=self.verify, read_options=self.options)


def checked_ends(counts: IntArray, where: str) -> IntArray:
    """Returns the ends of each shard's records; counts of a dataset can be wrong."""
    if float(counts.sum(dtype=float)) > 2**62:
        raise InvalidDatasetError(
            "dataset has more than 2^62 records by its own count",
            where=where,
            cure="restore it from a copy, or convert it again",
        )
    ends: IntArray = np.cumsum(counts, dtype=np.int64)
    return ends
