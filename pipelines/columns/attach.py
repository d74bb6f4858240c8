"""Attaching columns to the records of a split, with local processes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.commit.attached_split import AttachedSplit, ShardTask
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.directory_lock import scratch_directory
from gristmill.pipelines.anywhere import JobRun, result_path_of
from gristmill.pipelines.columns.column_values import (
    Matched,
    match_shard,
    write_joined,
)
from gristmill.pipelines.columns.row_store import (
    SHOWN,
    JoinBy,
    RowStore,
    RowWriter,
    check_feature,
    fills_of,
    has_texts,
    keys_of,
    kinds_of,
    refused,
)
from gristmill.pipelines.columns.table_files import Tables
from gristmill.pipelines.local.pool import run_job, run_steps
from gristmill.pipelines.text.facts import plural
from gristmill.transforms.columns.attach_job import (
    BegunColumns,
    ComputeJob,
    WriteColumns,
    attached_before,
)
from gristmill.transforms.jobs.job import Begun, Job


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attached:
    """The result of attaching columns.

    Attributes:
        manifest: The dataset after the commit.
        split: The split.
        columns: The types of the columns, by name.
        file_bytes: Size of the files of their values.
        rows: Number of rows of the tables; None for a function.
        records: Number of records with a row.
        missing: Number of records without a row or a value.
        repeated: Number of rows with the key of another row.
        unmatched: Number of rows without a record.
        shown: Keys of some of the last three, by kind.
        done_before: Whether the same columns were attached already.
    """

    manifest: Manifest
    split: str
    columns: Mapping[str, ColumnType]
    file_bytes: int
    rows: int | None = None
    records: int = 0
    missing: int = 0
    repeated: int = 0
    unmatched: int = 0
    shown: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    done_before: bool = False

    @property
    def title(self) -> str:
        """The columns, and the number of records."""
        records = plural(self.manifest.splits[self.split].records, "record")
        done = "attached before" if self.done_before else "attached"
        names = ", ".join(f"{name} ({kind})" for name, kind in self.columns.items())
        return (
            f"{self.manifest.name}/{self.split}: {names} {done} to {records}; these "
            "stay as they were"
        )


R = TypeVar("R")


def attach_tables(
    dataset: str,
    inputs: Sequence[str],
    by: JoinBy,
    *,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    show_progress: bool = False,
) -> Attached:
    """Attaches columns of tables to the records that their rows belong to.

    Memory: 40 bytes per row; values are kept in temporary files.

    Args:
        dataset: The dataset's directory.
        inputs: Files of Parquet or JSON lines, or one dataset.
        by: The match of rows to records.
        columns: The columns to attach; None for all but the key.
        split: The split; None for the only one.
        overwrite: Whether to replace columns of these names.
        workers: Number of processes; by default the number of cores.
        show_progress: Whether to show progress on standard error.

    Raises:
        InputError: Records lack a row, rows lack a record, or several rows have one
            key, and that is not allowed; or tables cannot be read as columns.
    """
    target, tables = (
        AttachedSplit(dataset, split, overwrite=overwrite),
        Tables.find(inputs),
    )
    check_feature(target, by)
    with scratch_directory() as directory:
        writer = RowWriter(directory, by.key, columns)
        wanted = None if columns is None else [*dict.fromkeys([by.key, *columns])]
        for rows in tables.rows(wanted):
            writer.add(rows)
        kinds = kinds_of(writer, inputs)
        fill = fills_of(kinds, by.fill)
        how = [dataclasses.asdict(by), tables.identity, repr(fill)]
        attachment = target.attachment([*kinds], how)
        if target.is_done(attachment):
            before = attached_before(target, attachment)
            return Attached(**before._asdict())
        last = by.repeated == "last"
        problems = writer.finish(*keys_of(writer, by))
        if problems.repeated and by.repeated == "error":
            raise refused(
                f"the key of another row in {plural(problems.repeated, 'row')}",
                problems.shown,
                cure="take out the others, or choose with --repeated first or last",
            )
        match = functools.partial(
            match_shard,
            directory=directory,
            key=by.feature,
            texts=has_texts(writer),
            last=last,
        )
        run: Any = {"workers": workers, "show_progress": show_progress}
        begun: Begun[ShardTask] = Begun.on(
            dataset, "matching", target.tasks(attachment)
        )
        matched: list[Matched] = [*run_steps(match, begun, **run)]
        matched.sort(key=lambda one: one.task.first_record)
        found = sum(one.found for one in matched)
        missing = target.split.records - found
        shown = [
            f"record {number:,}" + (f" ({key})" if by.feature else "")
            for one in matched
            for number, key in one.missing
        ][:SHOWN]
        if missing and fill is None:
            raise refused(
                f"no row, or no value in it, for {plural(missing, 'record')}",
                shown,
                cure="add rows for them, or give a value for them with --missing",
            )
        lost = RowStore(directory).unmatched()
        lost_keys = writer.shown(lost[:SHOWN])
        _, without = writer.keys()
        unmatched = len(lost) + int(without.sum())
        lost_keys += ["none"] * bool(without.any())
        if unmatched and not by.allow_unmatched:
            raise refused(
                f"no record for {plural(unmatched, 'row')}",
                lost_keys,
                cure="correct their keys, or add --allow-unmatched to leave them out",
            )
        write = functools.partial(
            write_joined, directory=directory, fill=fill or {}, last=last
        )
        source = {"files": [*inputs][:SHOWN], "rows": writer.rows, "key": by.key}
        begun_columns = BegunColumns(target, attachment, kinds, source)
        made = run_job(WriteColumns(begun_columns, write), **run)
    return Attached(
        **made._asdict(),
        rows=writer.rows,
        records=found,
        missing=missing,
        repeated=problems.repeated,
        unmatched=unmatched,
        shown={
            "missing": shown,
            "repeated": problems.shown,
            "unmatched": lost_keys,
        },
    )


def attach_computed(
    dataset: str,
    function: str,
    *,
    split: str | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> Attached:
    """Attaches columns that a function computes from the records.

    Args:
        dataset: The dataset's directory.
        function: `module:function`. It is called with a record, and returns a dict of
            its values by column: numbers, texts, or arrays of numbers.
        split: As in `attach_tables`.
        overwrite: As in `attach_tables`.
        workers: As in `attach_tables`.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: As in `attach_tables`.

    Raises:
        InputError: There is no such function, or no record; or the columns exist.
        UserFunctionError: The function failed, or returned no columns.
    """
    job = ComputeJob(dataset, function, split, overwrite)
    made = run_anywhere(
        *(job, dataset, split, beam_options),
        workers=workers,
        show_progress=show_progress,
    )
    records = made.manifest.splits[made.split].records
    return Attached(**made._asdict(), records=0 if made.done_before else records)


def run_anywhere(
    job: Job[R],
    dataset: str,
    split: str | None,
    beam_options: Sequence[str] | None,
    **how: Any,
) -> R:
    """Runs a job on a split with Beam if there are options for it, otherwise here.

    Args:
        job: The job.
        dataset: The dataset's directory.
        split: The split; None for the only one.
        beam_options: As in `attach_computed`.
        how: As for `run_job`, without Beam.
    """
    path = ""
    if beam_options is not None:
        target = AttachedSplit(dataset, split)
        path = result_path_of(dataset, target.manifest.name, target.name, job)
    return JobRun(beam_options=beam_options, **how).finish(job, None, path)
