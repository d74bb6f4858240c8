"""Taking an output: a job gets its write, beside what the output holds already."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from gristmill.dataset.arrayrecord.file_writer import (
    check_versions,
    settled,
)
from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    InvalidDatasetError,
    JobChangedError,
    StorageError,
    some_of,
)
from gristmill.dataset.commit.clean import give_up_write
from gristmill.dataset.commit.commit import described_by_tfds
from gristmill.dataset.commit.garbage import SplitFiles, tidy_split
from gristmill.dataset.commit.listings import check_split, files_of_shards
from gristmill.dataset.commit.ownership import (
    check_inputs_stay,
    check_removal,
)
from gristmill.dataset.commit.write import (
    DAMAGED,
    Write,
    described_writes,
    next_write,
    read_output,
)
from gristmill.dataset.formats.tfrecord_frames import FRAME_OVERHEAD_BYTES
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import unlike_features
from gristmill.dataset.metadata.manifest import (
    Manifest,
    open_manifest,
    read_replaced_manifest,
)
from gristmill.dataset.metadata.sources import common_inputs
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.directory_lock import free_bytes
from gristmill.transforms.jobs.conversion_job import (
    PreparedJob,
    ShardNames,
)
from gristmill.transforms.sources.source import source_of

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


def take_output(prepared: PreparedJob, *, overwrite: Overwrite = False) -> TakenOutput:
    """Gives a prepared job its write id, and describes it beside its output.

    Nothing of another job is touched: its files have another id in their names.

    Args:
        prepared: The job.
        overwrite: Whether to replace the split that is there; `changed` to do so only
            if an earlier job with the same kind of names made it.

    Raises:
        InputError: The output holds the job's own inputs, or files of unknown origin
            with the names of its shards.
        JobChangedError: The output holds the split already, from another job.
    """
    job, asked = prepared.job, prepared
    manifest, damaged = read_output(job.output, job.name, replaces=overwrite is True)
    split = None if manifest is None else manifest.splits.get(job.split)
    shards = {prepared.shard_path(shard) for shard in range(prepared.plan.shards)}
    inputs = prepared.files.paths
    check_inputs_stay(job.output, job.name, job.split, inputs=inputs, shards=shards)
    found = _committed(prepared, split)
    anew = overwrite is True and not job.appends
    if found is not None and anew and _replaces_itself(prepared):
        found = None
    elif found is None and split is not None and not (job.appends or anew):
        anew = overwrite == "changed" and _is_alike(prepared, split)
        if not anew:
            raise _not_own(prepared, split.parts[0])
    whole = False
    if found is not None:
        prepared, part = found
        whole = not check_split(job.output, part)
    else:
        if job.appends and manifest is not None:
            for one in split.parts if split is not None else ():
                if _is_left_of_it(prepared, one):
                    raise _not_own(prepared, one)
            check_features(prepared, manifest)
            check_new_inputs(prepared, manifest)
        write = next_write(
            *(job.output, job.name, job.split, prepared.content),
            manifest=manifest,
            damaged=damaged,
            replaces=anew,
            shards=shards,
        )
        prepared = prepared.of_write(write)
    before = PreparedJob.load(job.output, job.name, prepared.job.split)
    own = before is not None and before.fingerprint == prepared.fingerprint
    if before is not None and own:
        prepared = prepared.changed_since(before)
    anew = anew and found is None and prepared.base != DAMAGED
    if prepared.changed and anew:  # Rather than compare what is finished.
        give_up_write(prepared.as_write)
        return take_output(asked, overwrite=overwrite)
    if whole and manifest is not None and not prepared.changed:
        tidy_split(job.output, manifest, job.split)
        return TakenOutput(prepared=prepared, committed=manifest)
    # What is missing by now is made again, and committed again.
    if not whole:
        check_versions(prepared.job.writer, where=f"{job.output}, split {job.split}")
    notes: tuple[str, ...] = ()
    replaces = prepared.replaces and found is None
    if replaces and split is not None:
        check_replaceable(job.output, manifest, job.split, inputs)
        _check_space(prepared, split)
        notes = tuple(_lost_with(prepared, split))
    if not own:
        notes += tuple(_unfinished_notes(prepared, manifest))
    fresh = not own and found is None
    return TakenOutput(
        prepared=dataclasses.replace(prepared.store(), fresh=fresh),
        committed=None,
        notes=notes,
        replaces=replaces,
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
    return not SplitFiles(job.output, manifest, job.split).has_garbage


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
    shards = check_removal(output, manifest, split)
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


_ENCODING = ("group_size", "compression")  # Options of a writer.


def open_to_append(dataset: str, split: str | None) -> tuple[Manifest, str]:
    """Returns a dataset and the split that is to grow.

    Args:
        dataset: The dataset's directory.
        split: The split; None for the only one.

    Raises:
        NotADatasetError: There is no committed dataset.
        InputError: There is no such split, TFDS's metadata describes it, or it holds
            packed rows.
    """
    manifest = open_manifest(dataset)
    names = sorted(manifest.splits)
    if split is None and len(names) == 1:
        (split,) = names
    if split is None or split not in manifest.splits:
        raise InputError(
            "no split given" if split is None else "no such split",
            where=dataset,
            expected=f"one of {some_of(names, 20)}",
            got=split,
            cure="give one of these with --split; gristmill convert makes a new one",
        )
    if manifest.splits[split].packed is not None:
        raise InputError(
            "the split holds packed rows, to which no records can be appended",
            where=f"{dataset}, split {split}",
            cure="pack the new documents into a dataset of their own: "
            "loader.open([old, new]) joins both, for batches.then too",
        )
    if described_by_tfds(dataset, manifest.name, [split]) is not None:
        raise InputError(
            "TFDS reads this split by its metadata, which cannot describe a second "
            "edition: TFDS would read the first alone",
            where=layout.join(dataset, layout.TFDS_INFO_JSON),
            got=f"a description of split {split}",
            cure="delete this file if TFDS need not read the dataset: all else can "
            "without it; or convert all of the data again",
        )
    return manifest, split


def check_new_inputs(prepared: PreparedJob, manifest: Manifest) -> None:
    """Checks that no input of an append is in its split.

    Raises:
        InputError: One is.
    """
    job = prepared.job
    given = prepared.files.paths
    for edition in manifest.splits[prepared.split].parts:
        same = common_inputs(job.output, edition, given)
        if not same:
            continue
        raise InputError(
            "inputs are in the dataset already",
            where=some_of(same),
            expected=f"files that no edition of split {prepared.split} was made of",
            got=f"{len(same):,} of {len(given):,} files are those of edition "
            f"{edition.edition}{_differences(prepared, edition)}",
            cure="give the new files only; where a file of the same name has other "
            "records now, give it another name; to have all in another form, convert "
            "the dataset again",
        )


def _differences(prepared: PreparedJob, edition: Split) -> str:
    """Describes the differences from the job that made an edition."""
    job = prepared.job
    key = layout.write_key(prepared.split, edition.write)
    with contextlib.suppress(GristmillError):
        made = PreparedJob.load(job.output, job.name, key)
        if made is not None and (told := prepared.differences(made)):
            return f", converted differently: {told}"
    return ""


def check_features(prepared: PreparedJob, manifest: Manifest) -> None:
    """Checks that new records can be read as those that are there.

    Raises:
        InputError: A feature is of another kind in the split. Readers would know
            nothing of its features then, or read nothing where the kind differs.
    """
    job = prepared.job
    if job.map is not None:
        return
    name = prepared.split
    before = manifest.splits[name].features
    own = source_of(prepared.files.spec).features()
    if before is None or own is None:
        return
    if others := unlike_features(before, own):
        one = others[0]
        raise InputError(
            "the new records have features of other types than the split",
            where=f"{job.output}, split {name}, {some_of(others)}",
            expected=f"{one!r} as {_described(before[one])}",
            got=_described(own[one]),
            cure="of JSON lines and CSV, give the types of the split, as in "
            "--columns '*,score:float'; or convert the new files into a dataset of "
            "their own",
        )


def _described(feature: Mapping[str, Any]) -> str:
    shape = f", shape {feature['shape']}" if feature.get("shape") else ""
    return f"{feature.get('type') or feature.get('dtype')}{shape}"


def first_writer(split: Split) -> dict[str, Any]:
    """Returns the encoding of the first edition of a split, if a job made it."""
    writer = split.parts[0].options.get("writer", {})
    return {name: writer[name] for name in _ENCODING if name in writer}
