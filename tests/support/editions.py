"""Datasets with editions, made here in a moment, and what is in them."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from gristmill.dataset.storage.lookup import storage_for
from tests.support.conversion import convert, job_of
from tests.support.records import frames_of


def add_edition(
    folder: pathlib.Path,
    output: str,
    edition: int,
    records: Sequence[bytes],
    shards: int = 2,
) -> None:
    """Converts records as the next edition of a dataset `d`."""
    inputs = folder / f"input-{edition}"
    inputs.mkdir(exist_ok=True)
    (inputs / "in.tfrecord").write_bytes(frames_of(records))
    job = job_of(inputs, output, name="d", plan=("num_shards", shards))
    convert(dataclasses.replace(job, appends=edition > 1))


def files_of(output: str) -> dict[str, bytes]:
    """Returns all files of a dataset, by relative path."""
    storage = storage_for(output)
    return {
        info.path.removeprefix(f"{output}/"): storage.read(info.path)
        for info in sorted(storage.scan(output, deep=True))
    }
