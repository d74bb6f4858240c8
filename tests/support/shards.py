"""Reports, indexes and tables of shards that were never written."""

import numpy as np

from gristmill.dataset import RecordsDigest, ShardReport, SourceSpan
from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.metadata.shard_table import ShardCollector


def report(shard=0, *, spans=2, **changes):
    """Returns a report in which no two numbers are the same."""
    written = RecordsDigest(
        records=10 + shard,
        raw_bytes=1000 + shard,
        low=(1 << 64) - 1 - shard,
        high=(1 << 63) + shard,
    )
    fields = {
        "path": f"c4-train.array_record-{shard:05d}-of-00064",
        "shard_index": shard,
        "job": "f1",
        "file_bytes": 131_072,
        "file_crc32c": 0xFFFF_FFFF - shard,
        "read": RecordsDigest(records=12 + shard, raw_bytes=1200, low=5, high=6),
        "written": written,
        "dropped_records": 3,
        "added_records": 1,
        "changed_records": 5,
        "skipped_regions": 2,
        "skipped_bytes": 77,
        "spans": tuple(
            SourceSpan(
                file_index=shard + number,
                begin_bytes=100 * number,
                end_bytes=100 * number + 100,
                start_bytes=None if number % 3 == 2 else 100 * number + 4,
                stop_bytes=None if number % 3 == 2 else 100 * number + 104,
                records=7 * number,
                whole=number % 2 == 1,
            )
            for number in range(spans)
        ),
    }
    return ShardReport(**fields | changes)


def footer_with(counts, offsets=None):
    """Returns a footer with so many records in each chunk.

    Args:
        counts: Records of each chunk.
        offsets: Where the chunks begin and the last one ends; by default 100 bytes
            for each.
    """
    if offsets is None:
        offsets = 64 + 100 * np.arange(len(counts) + 1)
    return Footer(
        chunk_offsets=np.asarray(offsets, np.int64),
        chunk_records=np.asarray(counts, np.int64),
        chunk_decoded_bytes=10 * np.asarray(counts, np.int64),
        writer_options="group_size:1",
    )


def collected(reports, **options):
    """Returns a collector that holds reports."""
    collector = ShardCollector(**options)
    for each in reports:
        collector.add(each)
    return collector
