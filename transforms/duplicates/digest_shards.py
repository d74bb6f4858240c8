"""The digests of the records of a job's shards, in runs: one task a pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.conversion.shard_source import ShardSource
from gristmill.transforms.duplicates.record_keys import RecordKeys
from gristmill.transforms.duplicates.runs import RUN_RECORDS, Array, Run
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from gristmill.transforms.sources.source import (
    KeptPass,
    SkippedRegions,
    Source,
    source_of,
)

Keep = Callable[[int, int, Run], None]
"""Takes a run, by the number of its shard and its number there."""


class DigestTask(NamedTuple):
    """The shards of a pass, with no more of their job than these.

    Attributes:
        prepared: The job, with their files and cuts alone.
        by: What is compared.
        first_shard: Number of the first of them in the whole job.
        first_file: Number of the first of their files there.
    """

    prepared: PreparedJob
    by: Comparison
    first_shard: int
    first_file: int

    @property
    def stored_bytes(self) -> int:
        """Size of what is read."""
        return int(np.diff(self.prepared.plan.cut_bytes).sum())


class DigestedShard(NamedTuple):
    """A shard whose records have digests.

    Attributes:
        shard: Its number in the job.
        spans: Where its records came from.
        read: The digest of all of them.
        runs: How many runs they make.
        entries: How many entries these have.
        copies: How many records are copies of others in the same run.
    """

    shard: int
    spans: tuple[SourceSpan, ...]
    read: RecordsDigest = RecordsDigest()
    runs: int = 0
    entries: int = 0
    copies: int = 0


def digest_tasks(prepared: PreparedJob, by: Comparison) -> Iterator[DigestTask]:
    """Yields a task for each pass of a job that has something to read."""
    for begin in prepared.plan.pass_begins.tolist():
        shards = prepared.plan.pass_of(begin)
        if any(prepared.plan.ranges(shard) for shard in shards):
            yield _task_of(prepared, by, shards)


def _task_of(prepared: PreparedJob, by: Comparison, shards: range) -> DigestTask:
    plan, files = prepared.plan, prepared.files
    used = [r.file_index for shard in shards for r in plan.ranges(shard)]
    own = slice(min(used), max(used) + 1)
    before = int(plan.sizes[: own.start].sum())
    cuts = slice(shards.start, shards.stop + 1)
    part = dataclasses.replace(
        plan,
        sizes=plan.sizes[own],
        splittable=plan.splittable[own],
        cut_bytes=plan.cut_bytes[cuts] - before,
        joined=None,
    )
    some = dataclasses.replace(
        files,
        paths=tuple(files.paths[file] for file in range(own.start, own.stop)),
        sizes=files.sizes[own],
        versions=tuple(files.versions[file] for file in range(own.start, own.stop)),
        compressions=files.compressions[own],
        noted_ns=files.noted_ns[own],
        sources={},
    )
    return DigestTask(
        dataclasses.replace(prepared, files=some, plan=part),
        by,
        shards.start,
        own.start,
    )


def digest_pass(
    task: DigestTask, keep: Keep, *, run_records: int = RUN_RECORDS
) -> Iterator[DigestedShard]:
    """Yields the shards of a task, after their runs were kept.

    Args:
        task: The task.
        keep: Takes each run.
        run_records: Least records of a run, but the last of a shard. Memory: about
            100 bytes for each.

    Raises:
        CorruptInputError: The input is damaged, and that is not accepted.
        InputError: A record has no text.
        StorageError: Reading failed.
    """
    with closing(KeptPass()) as kept:
        for number in range(task.prepared.plan.shards):
            yield _digest_shard(task, number, keep, kept, run_records)


def _digest_shard(
    task: DigestTask, number: int, keep: Keep, kept: KeptPass, run_records: int
) -> DigestedShard:
    """Returns a shard, by its number in the task."""
    prepared, shard = task.prepared, task.first_shard + number
    job, ranges = prepared.job, prepared.plan.ranges(number)
    skipped = SkippedRegions(job.max_corrupt) if job.on_corrupt == "skip" else None
    source = source_of(prepared.files.spec)
    keys = RecordKeys(task.by, prepared.files.spec)
    numbers = {prepared.files.paths[r.file_index]: r.file_index for r in ranges}
    shard_source = ShardSource(prepared, number, skipped=skipped, kept=kept)
    digests: list[Array] = []
    files: list[Array] = []
    places: list[Array] = []
    waiting = runs = entries = copies = 0

    def end_run() -> None:
        nonlocal waiting, runs, entries, copies
        run = Run.of(*map(np.concatenate, (digests, files, places)))
        keep(shard, runs, run)
        entries, copies = entries + len(run.entries), copies + len(run.copies)
        runs, waiting = runs + 1, 0
        for each in (digests, files, places):
            each.clear()

    for path, batch, _ in shard_source.batches():
        place_of = functools.partial(_place_of, source, path, batch.places)
        digests.append(keys.digests(batch.records, place_of))
        places.append(np.array(batch.places, np.int64))
        file = task.first_file + numbers[path]
        files.append(np.full(len(batch.records), file, np.uint32))
        waiting += len(batch.records)
        if waiting >= run_records:
            end_run()
    if waiting:
        end_run()
    spans = tuple(
        dataclasses.replace(span, file_index=span.file_index + task.first_file)
        for span in shard_source.tally.spans
    )
    return DigestedShard(shard, spans, shard_source.tally.read, runs, entries, copies)


def _place_of(source: Source, path: str, places: Sequence[int], row: int) -> str:
    return f"{path}, {source.place_text(places[row])}"
