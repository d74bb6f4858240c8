"""Datasets with editions, made here in a moment, and what is in them."""

import dataclasses

from gristmill.dataset.storage.lookup import storage_for
from tests.support.conversion import convert, job_of
from tests.support.records import frames_of


def add_edition(folder, output, edition, records, shards=2):
    """Converts records as the next edition of a dataset `d`."""
    inputs = folder / f"input-{edition}"
    inputs.mkdir(exist_ok=True)
    (inputs / "in.tfrecord").write_bytes(frames_of(records))
    job = job_of(inputs, output, name="d", plan=("num_shards", shards))
    convert(dataclasses.replace(job, appends=edition > 1))


def files_of(output):
    """Returns all files of a dataset, by relative path."""
    storage = storage_for(output)
    return {
        info.path.removeprefix(f"{output}/"): storage.read(info.path)
        for info in sorted(storage.scan(output, deep=True))
    }
