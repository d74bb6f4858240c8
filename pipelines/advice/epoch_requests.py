"""The requests of an epoch to a bucket, from the loader's own order and ranges.

The order and the joining of ranges are the loader's own, for records of one size. Only
some batches, or one window, are computed: the others are similar.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from gristmill.loader.base.indices import IntArray
from gristmill.loader.order.batch_sizes import host_rows
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.shuffle import BlockShuffle, ShuffleKey, parse_shuffle
from gristmill.loader.remote.range_plan import plan_ranges
from gristmill.loader.remote.read_options import ReadOptions

_BATCHES = 8
_MOST_ROWS = 1 << 16
# Requests of a host when it opens a dataset: docs/train/storage.md, "Requests".
_OPENING_REQUESTS = 2
_LISTED_OBJECTS = 1000
# Requests for index entries of a record, if indexes are read by ranges:
# docs/train/storage.md.
_PARTIAL_REQUESTS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """The loader's view of a dataset.

    Attributes:
        records: Number of records.
        record_bytes: Mean length of a record.
        chunk_bytes: Mean size of a chunk.
        group_size: Records in a chunk.
        shards: Number of shards.
        index_bytes: Size of all indexes.
    """

    records: int
    record_bytes: float
    chunk_bytes: float
    group_size: int
    shards: int
    index_bytes: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRequests:
    """The requests of all hosts to a bucket.

    Attributes:
        shuffle: `global` or `block`.
        by_window: Whether whole windows of a block shuffle are read at a time.
        requests: Reads of records in an epoch.
        read_bytes: Bytes that these reads return.
        first_requests: Reads before and beside the first epoch: indexes, `dataset.json`
            and the table of shards.
        listings: Requests that list shards, once.
    """

    shuffle: Literal["global", "block"]
    by_window: bool
    requests: float
    read_bytes: float
    first_requests: float
    listings: float


def epoch_requests(
    stored: Stored,
    *,
    shuffle: Literal["global", "block"],
    hosts: int,
    batch_size: int,
) -> EpochRequests:
    """Computes the requests of an epoch.

    Args:
        stored: The dataset.
        shuffle: The order.
        hosts: Number of hosts, each with one reading process.
        batch_size: Rows of the global batch.

    Raises:
        InputError: The batch does not divide among the hosts.
    """
    order = DatasetOrder(num_records=stored.records, shuffle=parse_shuffle(shuffle))
    rows = host_rows(batch_size, process_index=0, process_count=hosts)
    groups, by_window = _window(stored, order, rows, batch_size, hosts), True
    if groups is None:
        groups, by_window = _batches(stored, order, rows, batch_size), False
    requests = read_bytes = taken = 0.0
    for records in groups:
        count, size = _ranges(stored, records)
        requests, read_bytes = requests + count, read_bytes + size
        taken += len(records)
    partial = stored.index_bytes > ReadOptions().index_bytes
    beside = partial * _PARTIAL_REQUESTS * stored.records
    factor = stored.records / max(taken, 1.0)
    return EpochRequests(
        shuffle=shuffle,
        by_window=by_window,
        requests=max(1.0, requests * factor) + beside,
        read_bytes=read_bytes * factor,
        first_requests=hosts * (_OPENING_REQUESTS + (not partial) * stored.shards),
        listings=hosts * -(-stored.shards // _LISTED_OBJECTS),
    )


def _batches(
    stored: Stored, order: DatasetOrder, rows: slice, batch_size: int
) -> list[IntArray]:
    """Returns the records that a host reads for some batches of an epoch."""
    steps = max(1, stored.records // batch_size)
    chosen = sorted({steps * number // _BATCHES for number in range(_BATCHES)})
    of_host = np.arange(rows.start, min(rows.stop, rows.start + _MOST_ROWS))
    return [order.records(step * batch_size + of_host) for step in chosen]


def _window(
    stored: Stored, order: DatasetOrder, rows: slice, batch_size: int, hosts: int
) -> list[IntArray] | None:
    """Returns the records that a host reads of a window, None to read by batches.

    See `loader/feed/read_ahead.py`.
    """
    shuffle = order.shuffle
    if not isinstance(shuffle, BlockShuffle):
        return None
    window = min(shuffle.block_records * shuffle.window_blocks, stored.records)
    if 2 * window * stored.record_bytes / hosts > ReadOptions().window_bytes:
        return None
    key = ShuffleKey(stored.records, 0, np.zeros(1, np.int64))
    begin, end = shuffle.window(stored.records // 2, key)
    positions = np.arange(begin, end, dtype=np.int64)
    host = positions % batch_size // (rows.stop - rows.start)
    return [order.records(positions[host == host[0]])]


def _ranges(stored: Stored, records: IntArray) -> tuple[int, int]:
    """Returns the number of ranges for the chunks of records, and their bytes."""
    chunks = np.unique(records // stored.group_size)
    in_shard = -(-stored.records // (stored.group_size * stored.shards))
    files, number = np.divmod(chunks, in_shard)
    size = max(1, round(stored.chunk_bytes))
    plan = plan_ranges(files, number * size, (number + 1) * size)
    return len(plan.firsts), int((plan.end_bytes - plan.begin_bytes).sum())
