"""Making shards: reading the records of their ranges, mapping, writing, reading back.

A task is one shard, or all shards made in one pass over a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.arrayrecord.file_writer import check_versions
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, WrittenShard
from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptInputError,
    CorruptShardError,
    JobChangedError,
    TransposedChunkError,
    some_of,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardCollector, ShardTable
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.conversion.shard_records import (
    RecordSink,
    RowSink,
    ShardSource,
    map_records,
)
from gristmill.transforms.jobs.conversion_job import (
    PreparedJob,
    load_prepared,
)
from gristmill.transforms.sources.source import (
    KeptPass,
    SkippedRegions,
)

_CPU_LOCK = threading.Lock()
# Counters, and fields of reports of shards.
_CHANGES = ("skipped-regions", "dropped-records", "added-records", "changed-records")
_PACKED = (
    *("documents", "tokens", "padding-tokens"),
    *("truncated-documents", "truncated-tokens"),
)


class ShardTask(NamedTuple):
    """A shard to make, and the later ones of the same pass, of a job on storage.

    Attributes:
        write: The write that makes it.
        shard: Its number.
        fresh: As in `PreparedJob`.
    """

    write: Write
    shard: int
    fresh: bool = False

    @property
    def prepared(self) -> PreparedJob:
        """The job."""
        return dataclasses.replace(load_prepared(self.write), fresh=self.fresh)


def shard_tasks(
    prepared: PreparedJob, first: int = 0, step: int = 1
) -> Iterator[ShardTask]:
    """Yields a task for each pass of a job from `first` on, at a distance of `step`.

    Passes that make the most shards come first.
    """
    begins, shards = prepared.plan.pass_begins, prepared.plan.shards
    if len(begins) < shards:
        begins = begins[np.argsort(-np.diff(begins, append=shards), kind="stable")]
    for shard in begins[first::step].tolist():
        yield ShardTask(prepared.write, shard, prepared.fresh)


class ShardResult(NamedTuple):
    """A finished shard.

    Attributes:
        task: The shard.
        report: Its counts; None for a split that was committed already.
        resumed: Whether it existed already.
        stored_bytes: Size of its part of the inputs.
    """

    task: ShardTask
    report: ShardReport | None
    resumed: bool = False
    stored_bytes: int = 0

    def gather(self, gathered: Gathered) -> None:
        """Adds the report, or notes that the split was committed already."""
        write = self.task.write
        if self.report is None:
            gathered.notes["committed"][write.key] = True
            return
        gathered.notes["task"][write.key] = self.task
        gathered.rows.setdefault(write.key, ShardCollector()).add(self.report)

    @property
    def done(self) -> Done:
        """The work done, for progress and metrics."""
        report = self.report
        if report is None:
            return Done(self.task.write.output, "committed before")
        counts = report.counts(resumed=self.resumed)
        said, read = "there already", RecordsDigest()
        if not self.resumed:
            said, read = "written", report.read
            counts |= {n: getattr(report, n.replace("-", "_")) for n in _CHANGES}
            if report.packed is not None:
                packed = dataclasses.asdict(report.packed)
                counts |= {n: packed[n.replace("-", "_")] for n in _PACKED}
        return Done(
            report.path,
            f"{report.written.records} records {said}",
            self.stored_bytes,
            read,
            counts,
        )


def make_shards(
    task: ShardTask, *, one_at_a_time: bool = False
) -> Iterator[ShardResult]:
    """Makes the shards of a task that an earlier run has not made.

    A file is read once, from its start to the last missing shard.

    Args:
        task: The first shard.
        one_at_a_time: Whether only one thread of this process converts at a time, while
            others wait for storage: one shard is published while the next is converted.
    """
    prepared = task.prepared  # Asks the storage: once a pass.
    lock = _CPU_LOCK if one_at_a_time else nullcontext()
    with closing(KeptPass()) as kept:
        for shard in prepared.plan.pass_of(task.shard):
            one = task._replace(shard=shard)
            yield make_shard(one, prepared, kept=kept, lock=lock)


def make_shard(
    task: ShardTask,
    prepared: PreparedJob | None = None,
    *,
    kept: KeptPass | None = None,
    lock: AbstractContextManager[Any] | None = None,
) -> ShardResult:
    """Makes one shard, its index, and its list of skipped damage, unless it exists.

    The same task writes the same bytes, so it can run again, or twice at once.

    Args:
        task: The shard.
        prepared: Its job, if it is loaded already.
        kept: Holds the pass over a file between shards. By default the file is read
            from its start.
        lock: Held while the shard is converted, not while waiting for storage.

    Raises:
        CorruptInputError: The input is damaged, and that is not accepted.
        FastTokenizerDiffersError: The fast tokenizer returns other ids.
        JobChangedError: Another conversion has taken over the output.
        UserFunctionError: The user's function failed.
        DataLossError: The finished shard does not hold the records that were read.
        StorageError: Reading or writing failed.
    """
    prepared = task.prepared if prepared is None else prepared
    shard, plan = task.shard, prepared.plan
    place = prepared.shard_place(shard)
    found = place.report()
    begin, end = plan.cut_bytes[shard : shard + 2].tolist()
    if found is None:
        report = convert_shard(prepared, shard, place=place, kept=kept, lock=lock)
        return ShardResult(task, report, stored_bytes=end - begin)
    if found.job != task.write.id:
        # This file did not exist when the job took the output.
        raise JobChangedError(
            "another job has written a file of the same name meanwhile",
            where=layout.join(prepared.job.output, place.path),
            expected=f"no file, or that of job {task.write.id}",
            got=f"that of job {found.job}",
            cure="choose another output for one of them, or run one after the other",
        )
    _check_same_inputs(prepared, shard, found, kept)
    return ShardResult(task, found, resumed=True, stored_bytes=end - begin)


def _check_same_inputs(
    prepared: PreparedJob, shard: int, found: ShardReport, kept: KeptPass | None
) -> None:
    """Compares a finished shard with its inputs if these may have changed since.

    A file that was written again can have the same size and time, but not the same
    ctime, which new permissions or links change too.
    """
    used = {part.file_index for part in prepared.plan.ranges(shard)}
    if not used & prepared.changed:
        return
    source = ShardSource(prepared, shard, skipped=SkippedRegions(), kept=kept)
    with contextlib.suppress(CorruptInputError):
        for _ in source.batches():
            pass
        tally = source.tally
        if (tally.read, tuple(tally.spans)) == (found.read, found.spans):
            return
    raise JobChangedError(
        "the records of an input have changed, its size has not",
        where=some_of(prepared.files.paths[file] for file in sorted(used)),
        expected=f"the records that {found.path} was made of",
        got="others",
        cure="choose another output, or replace the earlier work "
        "with --overwrite; what is not committed goes with gristmill clean "
        "--unfinished",
    )


def convert_shard(
    prepared: PreparedJob,
    shard: int,
    *,
    place: ShardPlace | None = None,
    kept: KeptPass | None = None,
    lock: AbstractContextManager[Any] | None = None,
) -> ShardReport:
    """Makes one shard even if it exists, and returns its report.

    Args:
        prepared: The job.
        shard: Number of the shard.
        place: The files at its place; looked up by default.
        kept: As in `make_shard`.
        lock: As in `make_shard`.
    """
    job, place = prepared.job, place or prepared.shard_place(shard)
    lock = nullcontext() if lock is None else lock
    skipped = SkippedRegions(job.max_corrupt)
    accepted = skipped if job.on_corrupt == "skip" else None
    with prepared.write.temporary() as local:
        source = ShardSource(prepared, shard, skipped=accepted, kept=kept)
        written = _copied(source, local, lock) or _written(source, local, lock)
        tally = source.tally
        report = ShardReport(
            path=place.path,
            shard_index=shard,
            job=prepared.write.id,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=tally.read,
            written=written.digest,
            dropped_records=tally.dropped_records + tally.left_out.records,
            added_records=tally.added_records,
            changed_records=tally.changed_records,
            null_rows=tally.null_rows,
            skipped_regions=len(skipped.found),
            skipped_bytes=skipped.bytes,
            spans=tuple(tally.spans),
            packed=tally.packed,
        )
        counted = ShardTable.of([report])
        counted.check_counts(mapped=job.map is not None, left_out=tally.left_out)
        prepared.check_current()  # Another job may have begun hours ago.
        skipped.publish(place)
        places = None if job.pack is not None else Places.joined(tally.places)
        return place.publish(
            local, written, report, segments=tally.segments, places=places
        )


def _written(
    source: ShardSource,
    local: str,
    lock: AbstractContextManager[Any],
) -> WrittenShard:
    """Writes a shard from its source, through stages, into a sink."""
    job, batches = source.prepared.job, source.batches()
    begun = list(itertools.islice(batches, 1))  # Waits for the first bytes.
    batches = itertools.chain(begun, batches)
    del begun
    if job.map is not None:
        batches = map_records(batches, job.map, source.tally)
    with lock:
        sink = (
            RecordSink(local, source)
            if job.pack is None
            else RowSink(local, source, job.pack)
        )
        with sink:
            for batch in batches:
                sink.write(batch)
            return sink.finish()


def _copied(
    source: ShardSource,
    local: str,
    lock: AbstractContextManager[Any],
) -> WrittenShard | None:
    """Returns a shard of copied chunks; None if its records must be encoded."""
    prepared = source.prepared
    job, files = prepared.job, prepared.files
    if files.spec.format != "arrayrecord" or job.map or job.pack is not None:
        return None
    check_versions(job.writer, where=local)
    # A second read repairs damage in transit. Without it the shard's bytes could depend
    # on the damage, since chunks that are encoded again may differ.
    for _ in range(1 + storage_for(files[0].path).remote):
        with (
            contextlib.suppress(CorruptShardError, TransposedChunkError),
            lock,
            ShardWriter(local, options=job.writer) as copier,
        ):
            for copied in source.copy_to(copier):
                if not copied:
                    return None
            return copier.finish()
    return None
