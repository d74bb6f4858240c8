"""A check that inputs are those of which an earlier run has finished shards.

Size and time of an input can be kept when it is written again. Then the system has
noted a change (ctime), as it does of new permissions or links. What finished shards
were made of is read again: if it is the same, they stay.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.errors import (
    CorruptInputError,
    JobChangedError,
    some_of,
)
from gristmill.transforms.conversion.shard_source import ShardSource
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.jobs.job import Begun, Run, run_here
from gristmill.transforms.sources.source import KeptPass, SkippedRegions


def check_same_inputs(
    prepared: PreparedJob, found: PreparedJob, *, run: Run = run_here
) -> bool:
    """Checks that finished shards were made of the inputs that are there.

    Args:
        prepared: The job.
        found: The same job, as an earlier run described it.
        run: Runs the comparison.

    Returns:
        Whether inputs have changed, as far as the system tells.

    Raises:
        JobChangedError: Their records have changed.
    """
    files = set(found.files.noted_changes(prepared.files))
    if not files:
        return False
    shards = {
        shard: used
        for shard in range(prepared.plan.shards)
        if (used := files & {r.file_index for r in prepared.plan.ranges(shard)})
    }
    changed: list[int] = run(CompareShards(prepared=prepared, shards=tuple(shards)))
    if changed:
        paths = {prepared.files.paths[file] for file in shards[changed[0]]}
        raise JobChangedError(
            "the records of an input have changed, its size has not",
            where=some_of(sorted(paths)),
            expected=f"the records that {prepared.shard_path(changed[0])} was made of",
            got=f"others in {len(changed):,} of {len(shards):,} shards",
            cure="restore the input, choose another output, or replace the earlier "
            "work with --overwrite; what is not committed goes with gristmill clean "
            "--unfinished",
        )
    return True


class ComparedShard(NamedTuple):
    """A shard whose inputs were read again.

    Attributes:
        shard: Its number.
        stored_bytes: Size of its inputs.
        changed: Whether they have other records than it was made of.
    """

    shard: int
    stored_bytes: int
    changed: bool

    def gather(self, gathered: Gathered) -> None:
        """Notes a shard that differs."""
        if self.changed:
            gathered.notes["changed"][self.shard] = True

    @property
    def done(self) -> Done:
        """What was done."""
        size = self.stored_bytes
        said = "others than before" if self.changed else "the same"
        return Done(f"inputs of shard {self.shard}", said, size, 0, size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareShards:
    """The job that compares shards, if they are finished, with their inputs.

    Attributes:
        prepared: Their job.
        shards: Their numbers, ascending. The result is those that differ.
    """

    prepared: PreparedJob
    shards: tuple[int, ...]

    def begin(self) -> Begun[Sequence[int]]:
        """Returns the shards of each pass: a file is read once for all of them."""
        plan = self.prepared.plan
        numbers = np.searchsorted(plan.pass_begins, self.shards, side="right")
        groups = itertools.groupby(
            zip(numbers.tolist(), self.shards, strict=True), key=lambda one: one[0]
        )
        tasks = [[shard for _, shard in group] for _, group in groups]
        return Begun(
            label="comparing",
            tasks=tasks,
            parts=len(tasks),
            planned=len(self.shards),
            stored_bytes=int(np.diff(plan.cut_bytes)[list(self.shards)].sum()),
        )

    @property
    def step(self) -> Callable[[Sequence[int]], Iterator[ComparedShard]]:
        """Compares the shards of a pass."""
        return functools.partial(_compare, self.prepared)

    def commit(self, gathered: Gathered) -> list[int]:
        """Returns the shards that differ."""
        return sorted(gathered.notes["changed"])


def _compare(prepared: PreparedJob, shards: Sequence[int]) -> Iterator[ComparedShard]:
    sizes = np.diff(prepared.plan.cut_bytes)
    with closing(KeptPass()) as kept:
        for shard in shards:
            changed = _has_other_records(prepared, shard, kept)
            yield ComparedShard(shard, int(sizes[shard]), changed)


def _has_other_records(prepared: PreparedJob, shard: int, kept: KeptPass) -> bool:
    """Returns whether a shard is finished, but was made of other records."""
    report = prepared.shard_place(shard).finished(prepared.fingerprint)
    if report is None:
        return False
    source = ShardSource(prepared, shard, skipped=SkippedRegions(), kept=kept)
    try:
        for _ in source.batches():
            pass
    except CorruptInputError:
        return True
    return (source.tally.read, tuple(source.tally.spans)) != (report.read, report.spans)
