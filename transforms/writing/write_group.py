"""Writing the shards of one group of records.

What is written depends on the records and options alone. So an attempt that is
repeated, or runs twice at once, writes the same bytes under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.errors import DataLossError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.planning.write_plan import WritePlan
from gristmill.transforms.writing.record_spool import RecordSpool

Record = bytes | tuple[bytes, bytes]


def write_group(
    plan: WritePlan, group: int, records: Iterable[Record]
) -> Iterator[ShardReport]:
    """Writes all shards of a group, unless they are there already.

    Memory: some 130 bytes a record of the group (180 and the key with keys), and a few
    megabytes. Disk: the group's records, and one shard.

    Args:
        plan: The plan.
        group: Number of the group.
        records: Its records in any order; with keys, (encoded key, record) each. They
            are read once.

    Yields:
        What was counted, one shard after the other.

    Raises:
        DataLossError: The records are not those that were counted for the plan.
        JobChangedError: Another write has taken over the output.
        StorageError: Reading or writing failed.
    """
    job = plan.job
    if plan.committed:
        return
    shards = plan.shards_of(group)
    # Where shards replace others, a repeated attempt may find them in their places.
    for output in dict.fromkeys((plan.dataset, job.output)):
        places = [ShardPlace.at(output, plan.shard_path(shard)) for shard in shards]
        there = [place.finished(plan.fingerprint) for place in places]
        finished = [report for report in there if report is not None]
        if len(finished) == len(shards):
            yield from finished
            return
    storage = storage_for(job.output)
    temporary = layout.temporary_dir(job.output, job.name, job.split)
    with storage.temporary(temporary) as path, closing(RecordSpool(path)) as spool:
        for record in records:
            if isinstance(record, bytes):
                spool.add(record)
            else:
                spool.add(record[1], record[0])
        if spool.digest != plan.digests[group]:
            raise DataLossError(
                "records of a group are not those that were counted before",
                where=f"{job.output}, split {job.split}, group {group}",
                expected=plan.digests[group].summary,
                got=spool.digest.summary,
                cure="make sure that the steps before give the same records when they "
                "are repeated, or put a beam.Reshuffle() before the write",
            )
        order = spool.order()
        cuts = spool.cuts(order, len(shards))
        for part, (shard, place) in enumerate(zip(shards, places, strict=True)):
            rows = order[slice(*cuts[part : part + 2])]
            yield _write_shard(plan, shard, place, spool, rows)


def _write_shard(
    plan: WritePlan,
    shard: int,
    place: ShardPlace,
    spool: RecordSpool,
    order: npt.NDArray[np.int64],
) -> ShardReport:
    job = plan.job
    temporary = layout.temporary_dir(job.output, job.name, job.split)
    with storage_for(job.output).temporary(temporary) as local:
        with ShardWriter(local, options=job.writer) as writer:
            for records, crc32cs in spool.batches(order):
                writer.write(records, crc32cs)
            written = writer.finish()
        report = ShardReport(
            path=place.path,
            shard_index=shard,
            job=plan.fingerprint,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=written.digest,
            written=written.digest,
        )
        plan.marker.check_current()  # Another write may have begun.
        place.publish(local, written, report)
    return report
