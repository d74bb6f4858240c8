"""The end of a search for duplicates: counts are compared, and the certificate written.

All of it is the same wherever the steps before ran.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError, InputError
from gristmill.dataset.duplicates.certificate import (
    MAGIC,
    Removals,
    Searched,
    open_certificate,
    write_certificate,
)
from gristmill.dataset.formats.streams.inflated_stream import COMPRESSIONS
from gristmill.dataset.metadata.shard_table import span_columns
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.conversion.begin import plan_shards
from gristmill.transforms.conversion.commit_shards import check_spans
from gristmill.transforms.conversion.list_inputs import check_records, match_job
from gristmill.transforms.duplicates.digest_shards import DigestedShard
from gristmill.transforms.duplicates.record_keys import records_for
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.input_formats import look_at
from gristmill.transforms.sources.shards.source_split import find_split


class DuplicatesResult(NamedTuple):
    """The result of a search for duplicates.

    Attributes:
        certificate: The file that lists them.
        by: What was compared.
        records: Number of all records.
        removed: How many of them are duplicates of an earlier one.
    """

    certificate: str
    by: str
    records: int
    removed: int

    @property
    def kept(self) -> int:
        """How many records are kept: the first of each."""
        return self.records - self.removed


def plan_search(job: ConversionJob, by: Comparison) -> PreparedJob:
    """Lists the inputs of a job that makes no shards, and plans what is read at once.

    Raises:
        InputError: Inputs or options cannot be used, or the certificate's path is that
            of another file.
    """
    _check_place(job.output)
    if (found := match_job(job)) is None:
        check_records(job.inputs[0], job.split)
        files = find_split(job.inputs[0], job.split, options=job.records)
    else:
        adapt = functools.partial(records_for, by=by)
        looked = found, look_at(found)
        files = find_inputs((), options=job.records, adapt=adapt, looked=looked)
    return PreparedJob(job=job, files=files, plan=plan_shards(job, files))


def _check_place(path: str) -> None:
    storage = storage_for(path)
    info = storage.stat(path)
    if info is None:
        return
    size_bytes = min(info.size_bytes, len(MAGIC))
    if not size_bytes or storage.read(path, 0, size_bytes) != MAGIC:
        raise InputError(
            "another file is there where the certificate is to be written",
            where=path,
            expected="no file, or an earlier certificate",
            got=f"a file of {info.size_bytes:,} bytes",
            cure="choose another path for the certificate",
        )


def checked_shards(
    prepared: PreparedJob, shards: Iterable[DigestedShard]
) -> list[DigestedShard]:
    """Returns the shards of a job in order, after a check that their ranges meet.

    Raises DataLossError if they do not.
    """
    every = [DigestedShard(number, ()) for number in range(prepared.plan.shards)]
    for shard in shards:
        every[shard.shard] = shard
    spans = [span for shard in every for span in shard.spans]
    check_spans(span_columns(spans), prepared.files)
    return every


def commit_certificate(
    path: str,
    prepared: PreparedJob,
    by: Comparison,
    shards: Iterable[DigestedShard],
    removals: Iterable[Removals],
    *,
    removed: int,
    work_dir: str,
) -> DuplicatesResult:
    """Writes the certificate, and opens it again.

    Args:
        path: Its path.
        prepared: The job whose records were compared.
        by: What was compared.
        shards: All shards.
        removals: The removals of all runs, in order.
        removed: How many they are.
        work_dir: A directory for temporary files.

    Raises:
        DataLossError: The counts contradict each other.
        StorageError: It cannot be written.
    """
    shards = list(shards)
    records = RecordsDigest.total(shard.read for shard in shards)
    counted = sum(shard.entries + shard.copies for shard in shards)
    if counted != records.records:
        raise DataLossError(
            "records were lost or added while duplicates were searched for",
            where=path,
            expected=f"{records.records:,} records",
            got=f"{counted:,}",
            cure="run again; if it repeats, please report it",
        )
    files = prepared.files
    compressions = [COMPRESSIONS[kind] for kind in files.compressions.tolist()]
    listed = zip(files.paths, files.sizes.tolist(), compressions, strict=True)
    searched = Searched(by=str(by), source=files.spec.to_json(), files=tuple(listed))
    storage = storage_for(path)
    with storage.temporary(work_dir) as local:
        write_certificate(local, searched, records, removals, removed=removed)
        storage.publish(local, path)
    found = open_certificate(path)
    return DuplicatesResult(path, str(by), found.records.records, found.removed)
