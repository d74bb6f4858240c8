"""Taking an output: a job gets its write id, and is described beside the output."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Literal

from gristmill.dataset.arrayrecord.chunk_encoder import check_versions, settled
from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    JobChangedError,
    StorageError,
    some_of,
)
from gristmill.dataset.commit.clean import give_up_write
from gristmill.dataset.commit.garbage import garbage_editions, tidy_split
from gristmill.dataset.commit.listings import check_split, files_of_shards
from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_inputs_stay,
    check_removal,
    committed_shards,
)
from gristmill.dataset.commit.write import (
    DAMAGED,
    Write,
    described_writes,
    next_write,
)
from gristmill.dataset.formats.tfrecord.frame_layout import FRAME_OVERHEAD_BYTES
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    read_replaced_manifest,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.leftovers import free_bytes
from gristmill.transforms.conversion.same_inputs import check_same_inputs
from gristmill.transforms.jobs.appended_job import check_apart, check_features
from gristmill.transforms.jobs.conversion_job import PreparedJob, ShardNames
from gristmill.transforms.jobs.job import Run, run_here

_ALIKE = ("writer", "map", "map_code_digest")  # Options that decide the size.
_PLAINLY = 0.9  # Of what is expected: it is an estimate.

Overwrite = bool | Literal["changed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenOutput:
    """A job that owns its output, and whether it has been done already.

    Attributes:
        prepared: The job, for the edition that it makes.
        committed: The dataset, if it holds the finished split; nothing is to do then.
        notes: Remarks for the user.
        replaces: Whether the edition replaces the split when it is committed.
    """

    prepared: PreparedJob
    committed: Manifest | None
    notes: tuple[str, ...] = ()
    replaces: bool = False


def take_output(
    prepared: PreparedJob,
    *,
    overwrite: Overwrite = False,
    run: Run = run_here,
) -> TakenOutput:
    """Gives a prepared job its write id, and describes it beside its output.

    Nothing of another job is touched: its files have another id in their names.

    Args:
        prepared: The job.
        overwrite: Whether to replace the split that is there; `changed` to do so only
            if an earlier job with the same kind of names made it.
        run: Compares finished shards with inputs that may have changed; see
            `check_same_inputs`.

    Raises:
        InputError: The output holds the job's own inputs, or files of unknown origin
            with the names of its shards.
        JobChangedError: The output holds the split already, from another job.
    """
    job, asked = prepared.job, prepared
    read = read_replaced_manifest if overwrite is True else read_versioned_manifest
    manifest, version = read(job.output)
    if manifest is not None:
        check_dataset_name(job.output, manifest, job.name)
    split = None if manifest is None else manifest.splits.get(job.split)
    check_inputs_stay(
        *(job.output, job.name, job.split),
        inputs=prepared.files.paths,
        shards={prepared.shard_path(shard) for shard in range(prepared.plan.shards)},
    )
    found = _committed(prepared, split)
    if found is not None and not (
        overwrite is True and not job.appends and _replaces_itself(prepared)
    ):
        prepared, part = found
    elif split is None or job.appends or overwrite is True:
        part = None
    elif overwrite == "changed" and _is_alike(prepared, split):
        part, overwrite = None, True
    else:
        raise _not_own(prepared, split.parts[0])
    if part is None:
        if job.appends and manifest is not None:
            for one in split.parts if split is not None else ():
                if _is_left_of_it(prepared, one):
                    raise _not_own(prepared, one)
            check_features(prepared, manifest)
            check_apart(prepared, manifest)
        write = next_write(
            job.output,
            job.name,
            job.split,
            prepared.content,
            manifest=manifest,
            damaged=manifest is None and bool(version),
            replaces=overwrite is True and not job.appends,
            shards={prepared.shard_path(n) for n in range(prepared.plan.shards)},
        )
        prepared = prepared.of_write(write)
    before = PreparedJob.load(job.output, job.name, prepared.job.split)
    own = before is not None and before.fingerprint == prepared.fingerprint
    noted = False
    if before is not None and own:
        try:
            noted = check_same_inputs(prepared, before, run=run)
        except JobChangedError:
            if overwrite is not True or part is not None or prepared.base == DAMAGED:
                raise
            give_up_write(prepared.as_write)
            return take_output(asked, overwrite=True, run=run)
    # What is missing by now is made again, and committed again.
    if part is not None and manifest and not check_split(job.output, part):
        tidy_split(job.output, manifest, job.split)
        if noted:
            prepared.store()
        return TakenOutput(prepared=prepared, committed=manifest)
    check_versions(prepared.job.writer, where=f"{job.output}, split {job.split}")
    notes: tuple[str, ...] = ()
    if prepared.replaces and split is not None:
        check_replaceable(job.output, manifest, job.split, prepared.files.paths)
        _check_space(prepared, split)
        notes = tuple(_lost_with(prepared, split))
    if not own:
        notes += tuple(_unfinished_notes(prepared, manifest))
    prepared = prepared.store()
    return TakenOutput(
        prepared=dataclasses.replace(prepared, fresh=not own and part is None),
        committed=None,
        notes=notes,
        replaces=prepared.replaces,
    )


def _committed(
    prepared: PreparedJob, split: Split | None
) -> tuple[PreparedJob, Split] | None:
    """Returns the job as that which made a part of the split, and the part; or None."""
    job = prepared.job
    if split is None:
        return None
    for part in split.parts:
        source = part.source
        # The versions of the writer may be others than this machine's.
        writer = settled(
            dataclasses.replace(job.writer, versions=""),
            source.get("options", {}).get("writer"),
        )
        own = dataclasses.replace(job, writer=writer)
        own_job = dataclasses.replace(prepared, job=own)
        made = source.get("content", source.get("job"))
        if part.removed is None and made == own_job.content:
            write = Write(
                output=job.output,
                name=job.name,
                split=job.split,
                id=source["job"],
                mark=part.write,
                base=split.edition,
            )
            return own_job.of_write(write), part
    return None


def _replaces_itself(prepared: PreparedJob) -> bool:
    """Returns whether an overwriting job is to make what the split holds once more.

    Not where a run of it was killed after it replaced a split: what it replaced is
    left to delete then.
    """
    job = prepared.job
    manifest, _ = read_replaced_manifest(job.output)
    if manifest is None:
        return True
    return not garbage_editions(job.output, manifest, job.split).keys


def _is_alike(prepared: PreparedJob, split: Split) -> bool:
    """Returns whether a job with the same kind of names made a split."""
    job = prepared.job
    key = layout.write_key(job.split, split.parts[0].write)
    old = PreparedJob.load(job.output, job.name, key)
    return old is not None and _kind(old.job.names) == _kind(job.names)


def check_replaceable(
    output: str, manifest: Manifest | None, split: str, inputs: Iterable[str]
) -> None:
    """Checks that a split may be replaced.

    Raises:
        InputError: Its files are inputs, were indexed and not written, or belong to
            another split.
    """
    if manifest is None:
        return
    shards = committed_shards(output, manifest, split)
    check_removal(output, manifest.name, split, manifest=manifest, shards=shards)
    check_inputs_stay(output, manifest.name, split, inputs=inputs, shards=shards)


def _check_space(prepared: PreparedJob, split: Split) -> None:
    """Checks that a split has room beside the one that it replaces.

    The size that it should have is known from a split that was made alike.

    Raises:
        StorageError: There is plainly not enough space.
    """
    job = prepared.job
    free, options = free_bytes(job.output), job.options()
    try:
        before = split.source["options"]
        if free is None or any(before[name] != options[name] for name in _ALIKE):
            return
        ratio = split.file_bytes / _frames_bytes(split)
    except (KeyError, TypeError, ZeroDivisionError):
        return  # It was made in another way, or is empty.
    expected_bytes = int(ratio * int(prepared.files.sizes.sum()))
    prefix = layout.shard_prefix(job.name, job.split)
    made = sum(info.size_bytes for info, _ in files_of_shards(job.output, prefix))
    if free + made < _PLAINLY * expected_bytes:
        raise StorageError(
            "not enough space for the new split beside the old one",
            where=f"{job.output}, split {prepared.split}",
            expected=f"about {expected_bytes:,} bytes, as the old one took",
            got=f"{free:,} bytes free" + (f", {made:,} made already" if made else ""),
            cure="free some space, or choose another output; to do without the old "
            "split, delete it first",
        )


def _lost_with(prepared: PreparedJob, split: Split) -> Iterator[str]:
    """Yields notes on what goes with a split that is replaced."""
    if _lost_records(prepared, split):
        yield (
            f"split {prepared.split} gets back the records that were removed from it: "
            "the inputs hold them"
        )
    names = {name for part in split.parts for name in part.columns}
    if names:
        yield (
            f"the columns {some_of(sorted(names))} of split {prepared.split} go with "
            "the records that are replaced"
        )


def _unfinished_notes(
    prepared: PreparedJob, manifest: Manifest | None
) -> Iterator[str]:
    """Yields a note on each other conversion of the split that is not finished."""
    job = prepared.job
    known = {} if manifest is None else manifest.known
    for key in described_writes(job.output, job.name, prepared.split):
        if key in known or key == prepared.job.split:
            continue
        with contextlib.suppress(InvalidDatasetError, StorageError):
            other = PreparedJob.load(job.output, job.name, key)
            if other is not None and other.fingerprint != prepared.fingerprint:
                yield (
                    f"another conversion of split {prepared.split} is not finished: "
                    f"{prepared.differences(other)}. Its files stay until gristmill "
                    f"clean --unfinished {job.output}"
                )


def _frames_bytes(split: Split) -> int:
    """Returns the size of the TFRecord files that hold what a split was made of.

    Compressed inputs hold more than their size: it is the least that a split takes.
    """
    records: int = split.source["records"]
    return int(split.source["raw_bytes"]) + FRAME_OVERHEAD_BYTES * records


def _lost_records(prepared: PreparedJob, split: Split) -> bool:
    """Returns whether records were removed that the inputs of a job hold."""
    return any(_has_lost(prepared, part) for part in split.parts)


def _has_lost(prepared: PreparedJob, edition: Split) -> bool:
    digest = edition.source.get("file_list_digest")
    return edition.removed is not None and digest == prepared.files.digest


def _is_left_of_it(prepared: PreparedJob, edition: Split) -> bool:
    """Returns whether an edition is what a job makes without records removed since."""
    options = edition.source.get("options")
    return _has_lost(prepared, edition) and options == prepared.job.options()


def _not_own(prepared: PreparedJob, edition: Split) -> JobChangedError:
    """Returns the error for a split that was not made by this job."""
    job = prepared.job
    if _is_left_of_it(prepared, edition):
        return JobChangedError(
            "records were removed from the split since it was converted",
            where=f"{job.output}, split {prepared.split}",
            got=f"edition {edition.edition:,}, made by gristmill remove",
            cure="nothing is left to do; to have the removed records back, go to an "
            "edition that gristmill inspect shows with gristmill rollback, or convert "
            "with --overwrite",
        )
    key = layout.write_key(prepared.split, edition.write)
    with contextlib.suppress(InvalidDatasetError):
        other = PreparedJob.load(job.output, job.name, key)
        if other is not None and other.fingerprint == edition.source.get("job"):
            return JobChangedError(
                "the output holds this split already, made with other options or "
                "inputs",
                where=f"{job.output}, split {prepared.split}",
                got=prepared.differences(other),
                cure="choose another output or --split, or replace it with --overwrite",
            )
    return JobChangedError(
        "the output holds this split already, from another source",
        where=f"{job.output}, split {prepared.split}",
        # Files that were indexed are not ours to delete.
        cure="choose another --split or output"
        if "indexed" in edition.source
        else "choose another --split or output, or replace it with --overwrite",
    )


def _kind(names: ShardNames) -> tuple[str, str]:
    return names.kind, names.prefix
