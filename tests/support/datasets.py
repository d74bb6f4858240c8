"""Datasets that are converted here, in a moment, by the functions that Beam runs."""

import dataclasses
import pathlib

from gristmill.dataset import WriterOptions, open_manifest
from tests.support import conversion
from tests.support.records import frames_of


def convert(
    folder,
    files,
    *,
    group_size=1,
    compression="zstd:3",
    split="train",
    name="d",
    edition=1,
):
    """Converts lists of records, a shard for each, and returns the dataset.

    They are appended if they make a later edition.
    """
    inputs = folder / f"in-{split}-{edition}"
    inputs.mkdir(parents=True)
    for number, records in enumerate(files):
        (inputs / f"{number:05d}.tfrecord").write_bytes(frames_of(records))
    job = conversion.job_of(
        inputs,
        folder / "out",
        name=name,
        split=split,
        plan=("match_shards", None),
        writer=WriterOptions(group_size=group_size, compression=compression),
        allow_empty_files=True,
        appends=edition > 1,
    )
    conversion.convert(job)
    return job.output


def describe(dataset, features, *, split="train"):
    """Writes what records hold into `dataset.json`, as a conversion of a table does."""
    manifest = open_manifest(dataset)
    described = dataclasses.replace(manifest.splits[split], features=features)
    splits = {**manifest.splits, split: described}
    data = dataclasses.replace(manifest, splits=splits).encode()
    (pathlib.Path(dataset) / "dataset.json").write_bytes(data)
