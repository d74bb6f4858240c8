"""A plan of shards with an exact number of records each."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from gristmill.transforms.planning.shard_plan import Int64, ShardPlan


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordCounts:
    """The good records of all parts of all files, and where some of them begin.

    Attributes:
        files: int64 [parts], which file each is of, ascending. Every file has a part.
        records: int64 [parts], how many there are.
        offsets: int64 [offsets], where records 0, stride, 2 * stride, ... of each part
            begin in its file; only the first for a compressed file, which can be
            entered nowhere else.
        offset_ends: int64 [parts], where the offsets of each part end.
        stride_records: The stride.
    """

    files: Int64
    records: Int64
    offsets: Int64
    offset_ends: Int64
    stride_records: int


def plan_by_records(
    records_per_shard: int,
    sizes: Int64,
    splittable: npt.NDArray[np.bool_],
    counts: RecordCounts,
) -> ShardPlan:
    """Plans shards of an exact number of records (the last can hold fewer).

    Args:
        records_per_shard: Records in each shard.
        sizes: int64 [files], size of each file as stored.
        splittable: bool [files], whether reading can begin in the middle.
        counts: What a pass over the frames of all files counted.
    """
    total = int(counts.records.sum())
    shards = max(1, -(-total // records_per_shard))
    edges = np.concatenate(([0], np.cumsum(sizes)))
    record_edges = np.concatenate(([0], np.cumsum(counts.records)))
    cuts = np.arange(1, shards, dtype=np.int64) * records_per_shard
    # Of parts without records, none: the last one that begins at or before the cut.
    parts = np.searchsorted(record_edges, cuts, side="right") - 1
    within = cuts - record_edges[parts]
    known = np.diff(counts.offset_ends, prepend=0)
    strides = np.minimum(within // counts.stride_records, known[parts] - 1)
    files = counts.files[parts]
    begins_file = np.diff(counts.files, prepend=-1) > 0
    # The first record of a file may lie after damage: begin at the file then.
    at_begin = ~splittable[files] | (begins_file[parts] & (strides == 0))
    rows = counts.offset_ends[parts] - known[parts] + strides
    offsets = np.where(at_begin, 0, counts.offsets[rows])
    skipped = within - strides * counts.stride_records
    return ShardPlan(
        sizes=sizes,
        splittable=splittable,
        cut_bytes=np.concatenate(([0], edges[files] + offsets, edges[-1:])),
        cut_records=np.concatenate(([0], skipped, [0])),
        counted=True,
    )
