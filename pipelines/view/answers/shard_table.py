"""What is known of all shards of a dataset, as columns, and some charts of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset, shards_of, table_of

_BUCKETS = 400
_EXTREMES = 10


@dataclasses.dataclass(frozen=True)
class ShardColumns:
    """Columns of all shards, int64 [shards].

    Attributes:
        records: Records of each.
        file_bytes: Size of each file; None where that is not known.
        raw_bytes: Size of the records of each, before compression; None likewise.
    """

    records: IntArray
    file_bytes: IntArray | None
    raw_bytes: IntArray | None


def shard_columns(dataset: Dataset) -> ShardColumns:
    """Returns the columns of a dataset's shards; opens none."""
    shards = shards_of(dataset)
    tables = [table_of(part) for part in dataset.parts]
    raw = [table.columns["raw_bytes"] for table in tables if table is not None]
    known = bool((shards.file_bytes >= 0).all())
    return ShardColumns(
        records=np.diff(shards.ends, prepend=0),
        file_bytes=shards.file_bytes if known else None,
        raw_bytes=np.concatenate(raw) if len(raw) == len(tables) else None,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """The smallest, median and largest number in each bucket."""

    min: list[int]
    median: list[float]
    max: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardsChart:
    """Shards in the order of the dataset, some in each bucket.

    Attributes:
        per_bucket: How many; the last can have fewer.
        first: Number of the first shard of each.
        records: Their records.
        bytes: Their sizes, None where they are not known.
    """

    per_bucket: int
    first: list[int]
    records: Spread
    bytes: Spread | None


def shards_chart(columns: ShardColumns) -> ShardsChart | None:
    """Returns the chart of some shards; None of no shard."""
    count = len(columns.records)
    if not count:
        return None
    per_bucket = -(-count // _BUCKETS)
    sizes = columns.file_bytes
    return ShardsChart(
        per_bucket=per_bucket,
        first=list(range(0, count, per_bucket)),
        records=_spread(columns.records, per_bucket),
        bytes=None if sizes is None else _spread(sizes, per_bucket),
    )


def _spread(values: IntArray, per_bucket: int) -> Spread:
    full = len(values) // per_bucket * per_bucket
    buckets = values[:full].reshape(-1, per_bucket)
    low, high = buckets.min(axis=1).tolist(), buckets.max(axis=1).tolist()
    middle = np.median(buckets, axis=1).tolist()
    if len(rest := values[full:]):
        low.append(int(rest.min()))
        high.append(int(rest.max()))
        middle.append(float(np.median(rest)))
    return Spread(min=low, median=middle, max=high)


def extreme_shards(
    dataset: Dataset, columns: ShardColumns, *, largest: bool
) -> list[dict[str, Any]]:
    """Returns the largest or the smallest shards, by bytes or else by records.

    Of equals, the first ones.
    """
    values = columns.records if columns.file_bytes is None else columns.file_bytes
    wanted = -values if largest else values
    if len(wanted) > _EXTREMES:
        # Of a million shards, sorting all would take a while.
        bound = np.partition(wanted, _EXTREMES - 1)[_EXTREMES - 1]
        found = np.flatnonzero(wanted < bound)
        equal = np.flatnonzero(wanted == bound)[: _EXTREMES - len(found)]
        found = np.concatenate([found, equal])
    else:
        found = np.arange(len(wanted))
    found = found[np.lexsort((found, wanted[found]))]
    sizes, paths = columns.file_bytes, shards_of(dataset).paths
    return [
        {
            "shard": shard,
            "file": paths[shard],
            "bytes": None if sizes is None else int(sizes[shard]),
            "records": int(columns.records[shard]),
        }
        for shard in found.tolist()
    ]
