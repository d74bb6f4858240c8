"""The shards of a dataset: columns and charts of all, and one by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gristmill.dataset.metadata.provenance import read_source_files
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset, shards_of, table_of
from gristmill.loader.data.shard_info import ShardInfo
from gristmill.loader.provenance.source_place import cached_footer
from gristmill.pipelines.view.answers.opened_datasets import Opened, checked_number

_BUCKETS = 400
_EXTREMES = 10


@dataclasses.dataclass(frozen=True)
class ShardColumns:
    """Columns of all shards, int64 [shards].

    Attributes:
        records: Records of each.
        file_bytes: Size of each file; None if not known.
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

    The first ones of equals.
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


_SOURCES = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard.

    Attributes:
        shard: Its number.
        of: The name of its dataset in a mixture.
        file: Its file.
        bytes: The size of that.
        first_record: The number of its first record in the dataset.
        records: How many records it has.
        raw_bytes: Their size before compression, where known.
        chunks: How many chunks they are in.
        edition: The edition that it was made for, where known.
        digest: Order-independent digest of its records, where known.
        sources: Ranges of the files that it was made of, as far as known.
        num_sources: How many there are.
    """

    shard: int
    of: str
    file: str
    bytes: int
    first_record: int
    records: int
    raw_bytes: int | None
    chunks: int
    edition: int | None
    digest: str | None
    sources: list[dict[str, Any]]
    num_sources: int


def shard(
    opened: Opened, *, shard: int, of: str = "", split: str | None = None
) -> Shard:
    """Returns the facts known about a shard; reads its footer."""
    dataset = opened.dataset(of, split)
    name = shards_of(dataset).name
    number = checked_number(shard, dataset.num_shards, what="shard", where=name)
    part, in_part = dataset.part_of(number)
    info, table = part.shard(in_part), table_of(part)
    size = size_of(info)
    footer = cached_footer(info.path, size, info.records_digest)
    return Shard(
        shard=number,
        of=opened.name(of),
        file=info.path,
        bytes=size,
        first_record=dataset.shard(number).first_record,
        records=info.records,
        raw_bytes=None if table is None else int(table.columns["raw_bytes"][in_part]),
        chunks=len(footer.chunk_records),
        edition=info.edition,
        digest=info.records_digest,
        sources=_sources(part, info),
        num_sources=len(info.spans),
    )


def size_of(info: ShardInfo) -> int:
    """Returns the size of a shard's file, in bytes; 0 if it is missing."""
    if info.file_bytes is not None:
        return info.file_bytes
    found = storage_for(info.path).stat(info.path)
    return 0 if found is None else found.size_bytes


def _sources(part: Dataset, info: ShardInfo) -> list[dict[str, Any]]:
    committed = part.committed
    if committed is None or info.edition is None:
        return []
    files = read_source_files(part.path, committed.part(info.edition))
    return [
        {
            "path": files[span.file_index].path,
            "begin_bytes": span.start_bytes,
            "end_bytes": span.stop_bytes,
            "records": span.records,
        }
        for span in info.spans[:_SOURCES]
        if 0 <= span.file_index < len(files)
    ]
