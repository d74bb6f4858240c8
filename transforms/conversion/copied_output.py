"""Shards whose records are copied from other shards, in the chunks that they are in.

A chunk that is copied is not decoded: its hash is compared when it is read, and again
in the finished shard. The checksums of its records come from the index of the source,
whose records were decoded and compared when it was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gristmill.dataset.arrayrecord.chunk_encoder import check_versions
from gristmill.dataset.arrayrecord.shard_copier import ShardCopier
from gristmill.dataset.arrayrecord.shard_writer import WrittenShard
from gristmill.transforms.conversion.shard_output import Progress, Tally
from gristmill.transforms.conversion.span_check import SpanCheck
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.range_reader import RangeReader
from gristmill.transforms.sources.record_source import source_of


def may_be_copied(prepared: PreparedJob) -> bool:
    """Returns whether the records of a job stay as they are, and are in shards."""
    job = prepared.job
    is_shards = prepared.files.spec.format == "arrayrecord"
    return is_shards and job.map is None and job.pack is None


def copied_records(
    local: str,
    readers: Iterable[RangeReader[Any]],
    prepared: PreparedJob,
    tally: Tally,
    progress: Progress | None,
) -> WrittenShard | None:
    """Writes a shard of the records of ranges, in the chunks that they are in.

    Args:
        local: File to write.
        readers: Readers of the ranges.
        prepared: The job, which `may_be_copied`.
        tally: Counts the records.
        progress: Called after each range.

    Returns:
        The shard. None if a range is encoded otherwise than the job asks for: its
        records are to be read and written one by one.

    Raises:
        CorruptShardError: A range is damaged.
        TransposedChunkError: A range holds transposed chunks.
        StorageError: Reading or writing failed.
        DataLossError: The finished shard does not hold what was copied.
    """
    job, source = prepared.job, source_of(prepared.files.spec)
    check_versions(job.writer, where=local)
    decode = job.check == "decoded"
    with ShardCopier(local, options=job.writer, decode=decode) as copier:
        for reader in readers:
            copied = reader.copy(copier, job.writer)
            if copied is None:
                return None
            check = SpanCheck(source, reader.path, None)
            check.add(copied)
            check.finish(reader.span)
            tally.read += copied
            tally.spans.append(reader.span)
            tally.show(progress)
        return copier.finish()
