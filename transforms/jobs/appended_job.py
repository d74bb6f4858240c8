"""An append: a conversion whose records come after those that a split has.

Its inputs are compared with those of the editions that are there, so that no input is
appended twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.base.errors import GristmillError, InputError, some_of
from gristmill.dataset.commit.commit import described_by_tfds
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import unlike_features
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.sources import common_inputs
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.sources.source import source_of

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


def check_apart(prepared: PreparedJob, manifest: Manifest) -> None:
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
