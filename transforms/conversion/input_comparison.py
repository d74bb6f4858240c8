"""A check, by records, that inputs which look the same still are.

Size and time of an input can be kept when it is written again. Then the system has
noted a change (ctime), as it does of new permissions or links. What finished shards
were made of is read again: if it is the same, they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from gristmill.dataset.base.errors import CorruptInputError, JobChangedError, some_of
from gristmill.transforms.conversion.convert_shard import finished_shard, read_again
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.range_reader import KeptPass

# Returns those of some shards that were made of other records than are there.
CompareShards = Callable[[PreparedJob, Sequence[int]], Iterable[int]]


def check_same_inputs(
    prepared: PreparedJob,
    found: PreparedJob,
    *,
    compare_shards: CompareShards | None = None,
) -> bool:
    """Checks that finished shards were made of the inputs that are there.

    Args:
        prepared: The job.
        found: The same job, as an earlier run described it.
        compare_shards: By default, one shard after the other.

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
    compare = one_by_one if compare_shards is None else compare_shards
    if changed := sorted(compare(prepared, list(shards))):
        paths = {prepared.files.paths[file] for file in shards[changed[0]]}
        raise JobChangedError(
            "the records of an input have changed, its size and time have not",
            where=some_of(sorted(paths)),
            expected=f"the records that {prepared.shard_path(changed[0])} was made of",
            got=f"others in {len(changed):,} of {len(shards):,} shards",
            cure="restore the input, choose another output, or replace the earlier "
            "work with --overwrite",
        )
    return True


def one_by_one(prepared: PreparedJob, shards: Iterable[int]) -> Iterable[int]:
    """Yields the shards that were made of other records than are there.

    A compressed file is read once for all shards that follow each other.
    """
    with closing(KeptPass()) as kept:
        for shard in shards:
            if has_other_records(prepared, shard, kept=kept):
                yield shard


def has_other_records(
    prepared: PreparedJob, shard: int, *, kept: KeptPass | None = None
) -> bool:
    """Returns whether a shard is finished, but was made from other records.

    `kept` is as for `convert_shard`.
    """
    report = finished_shard(prepared, shard)
    if report is None:
        return False
    try:
        return read_again(prepared, report, kept=kept) != (report.read, report.spans)
    except CorruptInputError:
        return True
