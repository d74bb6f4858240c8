"""The claim on an output of a conversion that has finished no shard there: none.

A run describes its job beside the output before it makes the first shard. Until that
is finished, the description claims nothing: another job may have the output.
"""

from __future__ import annotations

from collections.abc import Iterable

from gristmill.dataset.base.errors import InvalidDatasetError, JobChangedError
from gristmill.dataset.commit.editions import fingerprint_of
from gristmill.dataset.commit.listings import walk
from gristmill.dataset.commit.ownership import committed_shards
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.kinds import INDEX, SEGMENTS
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.shard_index import parse_index
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.prepared_job import PreparedJob, check_no_removal

_READ_AT_ONCE = 16


def replaced_shards(
    prepared: PreparedJob, manifest: Manifest | None, found: PreparedJob | None
) -> set[str]:
    """Returns the shards of another job, described beside the output of this one.

    It has finished none of them: its description can be replaced.

    Args:
        prepared: This job.
        manifest: The dataset as it is.
        found: The other job; None if its list of files is missing.

    Raises:
        JobChangedError: The output belongs to the other job.
        InvalidDatasetError: A removal has begun there.
    """
    job = prepared.job
    where = job.output, job.name, job.split
    committed = None if manifest is None else manifest.editions.get(job.split)
    shards = None
    if not found or not committed or committed.source.get("job") != found.fingerprint:
        shards = unfinished_shards(*where, manifest=manifest, described=found)
    if shards is not None:
        return shards
    # The list may have come since the description was read.
    found = found or PreparedJob.load_versioned(*where)[0]
    if found is None:
        check_no_removal(*where)
    raise JobChangedError(
        "the output belongs to a conversion with other options or inputs",
        where=f"{job.output}, split {job.split}",
        got="one whose shards are finished or being made, without its list of files"
        if found is None
        else prepared.differences(found),
        cure=(
            "repeat the earlier command to finish it, choose another output, or "
            if committed is None
            else "choose another output or --split, or "
        )
        + "replace the earlier work with --overwrite",
    )


def replaced_note(prepared: PreparedJob, found: PreparedJob | None) -> str:
    """Tells the user that a job took the place of the one found there."""
    what = "it ended at its start" if found is None else prepared.differences(found)
    return (
        f"an earlier conversion of split {prepared.job.split} had finished no shard, "
        f"and was replaced: {what}"
    )


def unfinished_shards(
    output: str,
    name: str,
    split: str,
    *,
    manifest: Manifest | None,
    described: PreparedJob | None,
) -> set[str] | None:
    """Returns the shards of the job described beside an output, if it finished none.

    None if one is finished, or a process of this machine makes one: that claims the
    output.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split.
        manifest: The dataset as it is.
        described: The job; None if its list of files is missing.
    """
    storage = storage_for(output)
    if storage.is_in_use(layout.temporary_dir(output, name, split)):
        return None
    committed = {
        path
        for key in (manifest.known if manifest else ())
        for path in committed_shards(output, manifest, key)
    }
    found = walk(output, (INDEX, SEGMENTS))
    finished = {one.parts["SHARD"] for one in found} - committed
    if described is None:
        return None if _has_finished(output, name, split, finished) else set()
    shards = set(map(described.shard_path, range(described.plan.shards))) - committed
    return shards if finished.isdisjoint(shards) else None


def _has_finished(output: str, name: str, split: str, finished: Iterable[str]) -> bool:
    """Returns whether the job described beside an output has finished any of shards."""
    storage = storage_for(output)
    document = storage.load(layout.join(output, layout.job_path(name, split)))
    fingerprint = None if document is None else fingerprint_of(document.data)

    def of_others(shard: str) -> bool:
        content = storage.load(layout.join(output, layout.index_path(shard)))
        if content is None:
            return True
        try:
            return parse_index(content.data, path=shard).report().job != fingerprint
        except InvalidDatasetError:
            return True  # Cut short by a crash of the machine: it is made again.

    return not all(map_all(of_others, sorted(finished), at_once=_READ_AT_ONCE))
