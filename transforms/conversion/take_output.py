"""Taking an output: a job gets its write, beside the splits that exist there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from gristmill.dataset.arrayrecord.file_writer import (
    check_versions,
    settled,
)
from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    JobChangedError,
    some_of,
)
from gristmill.dataset.commit.clean import give_up_write
from gristmill.dataset.commit.commit import described_by_tfds
from gristmill.dataset.commit.garbage import SplitFiles, tidy_split
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.commit.ownership import (
    check_inputs_stay,
    check_removal,
)
from gristmill.dataset.commit.write import (
    DAMAGED,
    Output,
    described_writes,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import unlike_features
from gristmill.dataset.metadata.manifest import (
    Manifest,
    chosen_split,
    open_manifest,
    read_replaced_manifest,
)
from gristmill.dataset.metadata.sources import common_inputs
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.sources.source import source_of

Overwrite = bool | Literal["changed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenOutput:
    """A job that owns its output, and the dataset if it is committed already.

    Attributes:
        prepared: The job, for the edition that it makes.
        committed: The dataset if it holds the finished split, so that nothing is left
            to do.
        notes: Remarks for the user.
    """

    prepared: PreparedJob
    committed: Manifest | None
    notes: tuple[str, ...] = ()


def take_output(prepared: PreparedJob, *, overwrite: Overwrite = False) -> TakenOutput:
    """Gives a prepared job its write id, and describes it beside its output.

    Nothing of another job is touched: its files have another id in their names.

    Args:
        prepared: The job.
        overwrite: Whether to replace an existing split; `changed` to replace it only if
            a job with the same kind of names made it.

    Raises:
        InputError: The output holds the job's inputs, or unknown files with the names
            of its shards.
        JobChangedError: The output holds the split already, from another job.
    """
    job, asked = prepared.job, prepared
    output = Output.read(job.write, replaces=overwrite is True)
    manifest, split = output.manifest, output.there
    parts = () if split is None else split.parts
    own_files = functools.partial(
        check_inputs_stay,
        *(job.output, job.name, job.split),
        inputs=prepared.files.paths,
    )
    shards = {*prepared.shards}
    own_files(shards=shards)
    made = None if split is None else _made(prepared, split)
    anew = overwrite is True and not job.appends
    if made is not None and anew and _replaces_itself(prepared):
        made = None
    elif made is None and parts and not (job.appends or anew):
        anew = overwrite == "changed" and _is_alike(prepared, parts[0])
        if not anew:
            raise _not_own(prepared, parts[0])
    whole = False
    if made is not None:
        prepared, part = made
        whole = not check_split(job.output, part)
    else:
        if job.appends and split is not None:
            for part in parts:
                if _is_left_of_it(prepared, part):
                    raise _not_own(prepared, part)
            _check_features(prepared, split)
            _check_new_inputs(prepared, split)
        write = output.next_write(prepared.content, replaces=anew, shards=shards)
        prepared = dataclasses.replace(prepared, write=write)
    write = prepared.write
    prepared, begun = _begun_before(prepared)
    if prepared.changed and anew and made is None and write.base != DAMAGED:
        give_up_write(write)  # Rather than compare finished shards.
        return take_output(asked, overwrite=overwrite)
    if whole and not prepared.changed:
        tidy_split(job.output, manifest, job.split)
        return TakenOutput(prepared=prepared, committed=manifest)
    # Missing files are made again, and committed again.
    if not whole:
        check_versions(prepared.job.writer, where=write.where)
    notes: list[str] = []
    if write.replaces and split is not None:
        own_files(shards=check_removal(job.output, manifest, job.split))
        notes += _lost_with(prepared, split)
    if not begun:
        notes += _unfinished_notes(prepared, manifest)
    prepared = dataclasses.replace(prepared.store(), fresh=not begun and made is None)
    return TakenOutput(prepared=prepared, committed=None, notes=tuple(notes))


def _begun_before(prepared: PreparedJob) -> tuple[PreparedJob, bool]:
    """Returns the job with the inputs that changed since it began, and if it had."""
    write = prepared.write
    described = PreparedJob.load(prepared.job.output, prepared.job.name, write.key)
    if described is None or described.write.id != write.id:
        return prepared, False
    noted = described.files.noted_changes(prepared.files)
    changed = described.changed.union(noted)
    return dataclasses.replace(prepared, changed=changed), True


def _made(prepared: PreparedJob, split: Split) -> tuple[PreparedJob, Split] | None:
    """Returns the job as it made a part of the split, and that part; or None."""
    unsettled = dataclasses.replace(prepared.job.writer, versions="")
    for part in split.parts:
        source = part.source
        # The versions of the writer may differ from this machine's.
        writer = settled(unsettled, source.get("options", {}).get("writer"))
        job = dataclasses.replace(prepared.job, writer=writer)
        found = dataclasses.replace(prepared, job=job)
        if part.removed is None and source.get("content") == found.content:
            write = dataclasses.replace(
                job.write, id=source["job"], mark=part.write, base=split.edition
            )
            return dataclasses.replace(found, write=write), part
    return None


def _described(prepared: PreparedJob, part: Split) -> PreparedJob | None:
    """Returns the job that made a part of the split, None if it is unknown."""
    job, key = prepared.job, layout.write_key(prepared.job.split, part.write)
    with contextlib.suppress(GristmillError):
        found = PreparedJob.load(job.output, job.name, key)
        if found is not None and found.write.id == part.source.get("job"):
            return found
    return None


def _is_alike(prepared: PreparedJob, part: Split) -> bool:
    """Returns whether a job with the same kind of names made a part of the split."""
    old, new = _described(prepared, part), prepared.job.names
    return old is not None and (
        (old.job.names.kind, old.job.names.prefix) == (new.kind, new.prefix)
    )


def _replaces_itself(prepared: PreparedJob) -> bool:
    """Returns whether an overwriting job makes the content of the split once more.

    False if a run of it was killed after replacing a split, and has files to delete.
    """
    job = prepared.job
    manifest, _ = read_replaced_manifest(job.output)
    return not SplitFiles(job.output, manifest, job.split).has_garbage


def _lost_with(prepared: PreparedJob, split: Split) -> Iterator[str]:
    """Yields notes on what a replacement of the split undoes or deletes."""
    name = prepared.job.split
    if any(_has_lost(prepared, part) for part in split.parts):
        yield (
            f"split {name} gets back the records that were removed from it: "
            "the inputs hold them"
        )
    if columns := {name for part in split.parts for name in part.columns}:
        yield (
            f"the columns {some_of(sorted(columns))} of split {name} go with "
            "the records that are replaced"
        )


def _unfinished_notes(prepared: PreparedJob, manifest: Manifest) -> Iterator[str]:
    """Yields a note on each other unfinished conversion of the split."""
    job, write = prepared.job, prepared.write
    for key in described_writes(job.output, job.name, job.split):
        if key in manifest.known or key == write.key:
            continue
        with contextlib.suppress(GristmillError):
            other = PreparedJob.load(job.output, job.name, key)
            if other is not None and other.write.id != write.id:
                yield (
                    f"another conversion of split {job.split} is not finished: "
                    f"{prepared.differences(other)}. Its files stay until gristmill "
                    f"clean --unfinished {job.output}"
                )


def _has_lost(prepared: PreparedJob, part: Split) -> bool:
    """Returns whether a part has lost records that the inputs hold."""
    digest = part.source.get("file_list_digest")
    return part.removed is not None and digest == prepared.files.digest


def _is_left_of_it(prepared: PreparedJob, part: Split) -> bool:
    """Returns whether a part is the job's result, less records removed since."""
    options = part.source.get("options")
    return _has_lost(prepared, part) and options == prepared.job.options()


def _not_own(prepared: PreparedJob, part: Split) -> JobChangedError:
    """Returns the error for a split that was not made by this job."""
    what = "the output holds this split already, and this command would not make it"
    got: str | None = f"edition {part.edition:,}, of other options or inputs"
    cure = "choose another --split or output"
    if _is_left_of_it(prepared, part):
        what = "records were removed from the split since it was converted"
        got = f"edition {part.edition:,}, made by gristmill remove"
        cure = (
            "nothing is left to do; to have the removed records back, go to an "
            "edition that gristmill inspect shows with gristmill rollback, or convert "
            "with --overwrite"
        )
    elif other := _described(prepared, part):
        what = "the output holds this split already, made with other options or inputs"
        got = prepared.differences(other)
        cure = "choose another output or --split, or replace it with --overwrite"
    elif "indexed" not in part.source:  # Such files are not ours to delete.
        cure += ", or replace it with --overwrite"
    return JobChangedError(what, where=prepared.write.where, got=got, cure=cure)


def open_to_append(dataset: str, split: str | None) -> tuple[Manifest, str]:
    """Returns the manifest of a dataset, and the name of the split to append to.

    Args:
        dataset: The dataset's directory.
        split: The split; None for the only one.

    Raises:
        NotADatasetError: There is no committed dataset.
        InputError: There is no such split, TFDS's metadata describes it, or it holds
            packed rows.
    """
    manifest = open_manifest(dataset)
    split = chosen_split(split, manifest.splits, dataset)
    if manifest.splits[split].packed is not None:
        raise InputError(
            "the split holds packed rows, to which no records can be appended",
            where=f"{dataset}, split {split}",
            cure="pack the new documents into a dataset of their own: "
            "loader.open([old, new]) joins both, for batches.then too",
        )
    if split in described_by_tfds(dataset, manifest.name)[1]:
        raise InputError(
            "TFDS reads this split by its metadata, which cannot describe a second "
            "edition: TFDS would read the first alone",
            where=layout.join(dataset, layout.TFDS_INFO_JSON),
            got=f"a description of split {split}",
            cure="delete this file if TFDS need not read the dataset: all else can "
            "without it; or convert all of the data again",
        )
    return manifest, split


def _check_new_inputs(prepared: PreparedJob, split: Split) -> None:
    """Raises InputError if an input of an append is in its split."""
    job, given = prepared.job, prepared.files.paths
    for part in split.parts:
        if not (same := common_inputs(job.output, part, given)):
            continue
        made = _described(prepared, part)
        told = "" if made is None else prepared.differences(made)
        raise InputError(
            "inputs are in the dataset already",
            where=some_of(same),
            expected=f"files that no edition of split {job.split} was made of",
            got=f"{len(same):,} of {len(given):,} files are those of edition "
            f"{part.edition}" + (told and f", converted differently: {told}"),
            cure="give the new files only; where a file of the same name has other "
            "records now, give it another name; to have all in another form, convert "
            "the dataset again",
        )


def _check_features(prepared: PreparedJob, split: Split) -> None:
    """Raises InputError if a feature is of another kind in the split.

    Readers could not read the new records like the others.
    """
    job = prepared.job
    before = split.features
    own = source_of(prepared.files.spec).features()
    if job.map is not None or before is None or own is None:
        return
    if others := unlike_features(before, own):
        one = others[0]
        raise InputError(
            "the new records have features of other types than the split",
            where=f"{job.output}, split {job.split}, {some_of(others)}",
            expected=f"{one!r} as {_text_of(before[one])}",
            got=_text_of(own[one]),
            cure="of JSON lines and CSV, give the types of the split, as in "
            "--columns '*,score:float'; or convert the new files into a dataset of "
            "their own",
        )


def _text_of(feature: Mapping[str, Any]) -> str:
    shape = f", shape {feature['shape']}" if feature.get("shape") else ""
    return f"{feature.get('type') or feature.get('dtype')}{shape}"


def first_writer(split: Split) -> dict[str, Any]:
    """Returns the encoding of the first edition of a split, if a job made it."""
    writer = split.parts[0].options.get("writer", {})
    return {n: writer[n] for n in ("group_size", "compression") if n in writer}
