"""Datasets that are converted here, in a moment, by the functions that Beam runs."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.metadata.manifest import open_manifest
from tests.support import conversion
from tests.support.records import frames_of


def convert(
    folder: pathlib.Path,
    files: Sequence[Sequence[bytes]],
    *,
    group_size: int = 1,
    compression: str = "zstd:3",
    split: str = "train",
    name: str = "d",
    edition: int = 1,
) -> str:
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


def describe(
    dataset: str, features: Mapping[str, Any], *, split: str = "train"
) -> None:
    """Writes what records hold into `dataset.json`, as a conversion of a table does."""
    manifest = open_manifest(dataset)
    described = dataclasses.replace(manifest.splits[split], features=features)
    splits = {**manifest.splits, split: described}
    data = dataclasses.replace(manifest, splits=splits).encode()
    (pathlib.Path(dataset) / "dataset.json").write_bytes(data)
