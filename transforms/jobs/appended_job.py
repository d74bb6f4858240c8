"""The job of an append: a conversion that makes the next edition of a split.

The inputs are compared with those of the editions that are there. So the command that
has appended them can be repeated, and no input is appended twice.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.dataset.base.columns import load_arrays
from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.commit.commit import described_by_tfds
from gristmill.dataset.commit.editions import next_edition
from gristmill.dataset.commit.write_marker import option_differences
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import joined_descriptions
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import has_file, storage_for
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.find_inputs import match_files
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.record_source import source_of
from gristmill.transforms.sources.shards.source_split import find_split

_LIST_VERSION = 1
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
            "loader.open([old, new]) joins both, for batches.extended too",
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


def appended_job(job: ConversionJob, manifest: Manifest) -> ConversionJob:
    """Returns the job that makes the next edition of a split of a dataset.

    If the inputs are those of an edition that is there, it is the job of that edition:
    nothing is left to do then.

    Args:
        job: What to append, with the dataset as output, its name, and the split.
        manifest: The dataset as it is.

    Raises:
        InputError: Inputs are in the split already, or they cannot be used.
    """
    files = _listed(job)
    given = {_absolute(info.path) for info in files}
    split = manifest.splits[job.split]
    for edition in split.parts:
        number = edition.edition
        known = _inputs_of(job.output, edition)
        same = given.intersection(map(_absolute, known.paths)) if known else ()
        if known is None or not same:
            continue
        key = layout.edition_key(job.split, number)
        if list(known.paths) == [info.path for info in files]:
            again = dataclasses.replace(job, split=key)
            _check_again(again, edition, known, files)
            return again
        raise InputError(
            "inputs are in the dataset already",
            where=some_of(sorted(same)),
            expected=f"files that no edition of split {job.split} was made of",
            got=f"{len(same):,} of {len(given):,} files are those of edition {number}",
            cure="give the new files only; where a file of the same name has other "
            "records now, give it another name",
        )
    number = next_edition(job.output, manifest.name, job.split, split)
    key = layout.edition_key(job.split, number)
    return dataclasses.replace(job, split=key)


def _listed(job: ConversionJob) -> list[FileInfo]:
    """Lists the inputs of a job in their order, without a look into them."""
    directory = job.inputs[0]
    if len(job.inputs) > 1 or not has_file(directory, layout.DATASET_JSON):
        return match_files(job.inputs, allow_empty_files=True)
    damage = job.on_corrupt == "skip"
    found = find_split(directory, job.split, options=job.records, allow_damage=damage)
    rows = zip(found.paths, found.sizes.tolist(), found.versions, strict=True)
    return [FileInfo(*row) for row in rows]


def _check_again(
    job: ConversionJob, edition: Split, known: InputFiles, files: Sequence[FileInfo]
) -> None:
    """Checks that a job is the one that has made an edition of files of these names."""
    now = job.options()
    before = dict(edition.options)
    # Who writes and the function's file are compared when the job is planned.
    for options in (before, now):
        writer = options["writer"]
        options["writer"] = {name: writer[name] for name in _ENCODING}
        options["map_code_digest"] = ""
    rows = zip(known.sizes.tolist(), known.versions, strict=True)
    changed = [
        info.path
        for info, was in zip(files, rows, strict=True)
        if was != (info.size_bytes, info.version)
    ]
    differences = option_differences(before, now)
    if changed:
        differences.append(f"{len(changed):,} files changed: {some_of(changed)}")
    if differences:
        raise InputError(
            "these inputs are in the dataset already, converted differently",
            where=f"{job.output}, split {job.split}",
            got="; ".join(differences),
            cure="give the new files only; where a file of the same name has other "
            "records now, give it another name; to have all in another form, convert "
            "the dataset again",
        )


def _inputs_of(dataset: str, edition: Split) -> InputFiles | None:
    """Returns the inputs of an edition, None if there is no list of files."""
    relative = edition.source.get("file_list")
    if not isinstance(relative, str):
        return None
    place = layout.join(dataset, layout.check_relative(relative, where=dataset))
    content = storage_for(place).load(place)
    if content is None:
        return None
    return InputFiles.of_arrays(
        load_arrays(content.data, where=place, version=_LIST_VERSION)
    )


def _absolute(path: str) -> str:
    return path if "://" in path or path.startswith("/") else os.path.abspath(path)


def check_features(prepared: PreparedJob, manifest: Manifest) -> None:
    """Checks that new records can be read as those that are there.

    Raises:
        InputError: A feature is of another kind in the split. Readers would know
            nothing of its features then, or read nothing where the kind differs.
    """
    job = prepared.job
    if job.map is not None:
        return
    name, _ = layout.parse_edition_key(job.split)
    before = manifest.splits[name].features
    own = source_of(prepared.files.spec).features()
    if before is None or own is None:
        return
    others = [
        feature
        for feature in before.keys() & own.keys()
        if joined_descriptions([{feature: d[feature]} for d in (before, own)]) is None
    ]
    if others:
        one = min(others)
        raise InputError(
            "the new records have features of other types than the split",
            where=f"{job.output}, split {name}, {some_of(sorted(others))}",
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
