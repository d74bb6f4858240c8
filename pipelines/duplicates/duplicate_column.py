"""The column `duplicate_of` of a dataset, from a certificate of its duplicates."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.columns.column_type import ColumnType
from gristmill.dataset.commit.attached_split import (
    AttachedSplit,
    ShardTask,
    Written,
    write_values,
)
from gristmill.dataset.duplicates.certificate import open_certificate
from gristmill.dataset.metadata import layout
from gristmill.pipelines.columns.attached import Attached
from gristmill.pipelines.local.pool import run_job
from gristmill.transforms.columns.attach_job import BegunColumns, WriteColumns

_NAME, _KIND = "duplicate_of", ColumnType("int64")


def attach_duplicates(
    dataset: str,
    certificate: str,
    *,
    split: str | None = None,
    overwrite: bool = False,
    workers: int | None = None,
) -> Attached:
    """Attaches the column `duplicate_of` to the dataset that a certificate is about.

    Its values are the number of the record that is kept, -1 of one that is kept itself.

    Args:
        dataset: The dataset's directory.
        certificate: The certificate of duplicates in its split.
        split: The split; None for the only one.
        overwrite: Whether a column of this name is replaced.
        workers: Number of processes; by default the number of cores.

    Raises:
        InputError: The column is there.
        StorageChangedError: The dataset has other shards by now.
    """
    target = AttachedSplit(dataset, split, overwrite=overwrite)
    found = open_certificate(certificate)
    attachment = target.attachment([_NAME], ["unique", found.identity])
    tasks = [*target.tasks(attachment)]
    files = [layout.join(dataset, task.shard) for task in tasks]
    if files != [path for path, _, _ in found.searched.files] or (
        found.records.hex != target.split.records_digest
    ):
        raise StorageChangedError(
            "the dataset has changed since its duplicates were found",
            where=f"{dataset}, split {target.name}",
            expected=f"the shards that {certificate} lists",
            cure="run one command at a time on a dataset, and this one again",
        )
    firsts = np.array([task.first_record for task in tasks])
    write = functools.partial(_write, certificate=certificate, firsts=firsts)
    source = {"duplicates": certificate, "by": found.searched.by}
    columns = BegunColumns(target, attachment, {_NAME: _KIND}, source)
    made = run_job(WriteColumns(columns, write), workers=workers)
    return Attached(**made._asdict(), records=target.split.records)


def _write(
    task: ShardTask, *, certificate: str, firsts: npt.NDArray[np.int64]
) -> Written:
    # Of shards without records, the last one at this number.
    file = int(np.searchsorted(firsts, task.first_record, side="right")) - 1
    values = np.full(task.digest.records, -1, np.int64)
    rows = open_certificate(certificate).between(file, 0, task.digest.records)
    values[rows["place"]] = firsts[rows["kept_file"]] + rows["kept_place"]
    return write_values(task, {_NAME: (_KIND, values)})
