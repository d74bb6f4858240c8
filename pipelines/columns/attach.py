"""Attaching columns to the records of a split, with local processes."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gristmill.dataset.base.columns import Done
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.commit.attached_split import (
    AttachedSplit,
    ShardTask,
    Written,
    write_values,
)
from gristmill.dataset.storage.directory_lock import scratch_directory
from gristmill.loader import Dataset
from gristmill.loader import open as open_dataset
from gristmill.pipelines.anywhere import JobRun, result_path_of
from gristmill.pipelines.columns.row_store import (
    SHOWN,
    JoinBy,
    RowStore,
    RowWriter,
    Unjoined,
    check_feature,
    fills_of,
    has_texts,
    is_key,
    key_numbers,
    keys_of,
    kinds_of,
    refused,
    row_store,
)
from gristmill.pipelines.columns.table_files import BLOCK_RECORDS, Tables, features_of
from gristmill.pipelines.local.pool import run_job, run_steps
from gristmill.pipelines.text.printer import plural
from gristmill.transforms.columns.attach_job import (
    AttachResult,
    ComputeJob,
    WriteColumns,
    attached,
)
from gristmill.transforms.jobs.job import Begun, Job

_SHOWN = 20


class Matched(NamedTuple):
    """The result of matching a shard's records to rows.

    Attributes:
        task: The shard.
        found: Number of records that have a row with all values.
        missing: Number and key of the first other records.
    """

    task: ShardTask
    found: int
    missing: Sequence[tuple[int, str]]

    @property
    def done(self) -> Done:
        """The work done, for progress and metrics."""
        return Written(self.task, {}).done


@functools.lru_cache(maxsize=2)
def _opened(attachment: tuple[str, str, int]) -> Dataset:
    dataset, split, edition = attachment
    return open_dataset(dataset, split, edition=edition)


def _records(task: ShardTask, begin: int) -> list[bytes]:
    """Returns a block of a shard's records, from a record of the split on."""
    at = task.attachment
    opened = _opened((at.write.output, at.write.split, max(at.editions)))
    end = min(begin + BLOCK_RECORDS, task.stop_record)
    return opened.stored.read(np.arange(begin, end))


def _rows_path(directory: str, task: ShardTask) -> str:
    return os.path.join(directory, f"found-{task.edition}-{task.number}.npy")


def match_shard(
    task: ShardTask, *, directory: str, key: str | None, texts: bool, last: bool
) -> Matched:
    """Finds the rows of a shard's records, and keeps their numbers in the directory.

    Args:
        task: The shard.
        directory: The directory of the rows.
        key: The feature with the key; None to join by the number of the record.
        texts: Whether the keys of the rows are texts.
        last: Whether to take the last of several rows with a key, not the first.
    """
    store = row_store(directory, last)
    found = np.empty(task.digest.records, np.int64)
    missing: list[tuple[int, str]] = []
    for begin in range(task.first_record, task.stop_record, BLOCK_RECORDS):
        end = min(begin + BLOCK_RECORDS, task.stop_record)
        own = slice(begin - task.first_record, end - task.first_record)
        keys: Sequence[Any] = range(begin, end)
        if key is None:
            rows = store.find(np.arange(begin, end))
        else:
            where = f"{task.attachment.write.output}, record {begin:,}"
            given = features_of(_records(task, begin), [key], where=where)[key]
            rows = np.full(end - begin, -1, np.int64)
            there = ~given.missing
            keys = [
                value if has else "none"
                for value, has in zip(given.values, there, strict=True)
            ]
            if given.kind is not None and there.any():
                _check_kind(key, given.kind, texts=texts, where=where)
                numbers = key_numbers(given.kind, given.values[there])
                rows[there] = store.find(numbers)
        found[own] = rows
        lost = np.flatnonzero(store.lost(rows))
        shown = lost[: _SHOWN - len(missing)].tolist()
        missing += [(begin + row, str(keys[row])) for row in shown]
    np.save(_rows_path(directory, task), found)
    return Matched(task, int((~store.lost(found)).sum()), missing)


def _check_kind(key: str, kind: ColumnType, *, texts: bool, where: str) -> None:
    if is_key(kind) and kind.is_text == texts:
        return
    raise InputError(
        f"the feature {key!r} is not of the type of the rows' keys",
        where=where,
        expected="texts" if texts else "integers",
        got=kind,
        cure="join by another feature, or write the keys of the rows with its type",
    )


def write_joined(
    task: ShardTask, *, directory: str, fill: Mapping[str, Any], last: bool
) -> Written:
    """Writes the values of a shard, from the rows that `match_shard` found.

    Args:
        task: The shard.
        directory: The directory of the rows.
        fill: Values for records without one, by column.
        last: As in `match_shard`.
    """
    store, rows = row_store(directory, last), np.load(_rows_path(directory, task))
    values = {
        name: store.values(name, rows, fill.get(name)) for name in task.attachment.kinds
    }
    return write_values(task, values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attached(AttachResult):
    """The result of attaching columns, and of matching them to records.

    Attributes:
        rows: Number of rows of the tables; None for a function.
        records: Number of records with a row.
        missing: Number of records without a row or a value.
        repeated: Number of rows with the key of another row.
        unmatched: Number of rows without a record.
        shown: Keys of some of the last three, by kind.
    """

    rows: int | None = None
    records: int = 0
    missing: int = 0
    repeated: int = 0
    unmatched: int = 0
    shown: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

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
    target = AttachedSplit(dataset, split, overwrite=overwrite)
    tables = Tables.find(inputs)
    check_feature(target, by)
    run: Any = {"workers": workers, "show_progress": show_progress}
    with scratch_directory() as directory:
        writer = RowWriter(directory, by.key, columns)
        wanted = None if columns is None else [*dict.fromkeys([by.key, *columns])]
        for rows in tables.rows(wanted):
            writer.add(rows)
        kinds = kinds_of(writer, inputs)
        fill = fills_of(kinds, by.fill)
        how = [dataclasses.asdict(by), tables.identity, repr(fill)]
        source = {"files": [*inputs][:SHOWN], "rows": writer.rows, "key": by.key}
        attachment = target.attachment(kinds, how, source)
        if target.is_done(attachment):
            before = attached(target.manifest, attachment, done_before=True)
            return Attached(**vars(before))
        repeated = _repeated(writer, by)
        tasks: Begun[ShardTask] = Begun.on(
            dataset, "matching", target.tasks(attachment)
        )
        missing = _missing(writer, by, tasks, fill is None, run)
        unmatched = _unmatched(writer, by)
        write = functools.partial(
            write_joined,
            directory=directory,
            fill=fill or {},
            last=by.repeated == "last",
        )
        made = run_job(WriteColumns(attachment, write), **run)
    found = {"missing": missing, "repeated": repeated, "unmatched": unmatched}
    counts: dict[str, Any] = {kind: some.number for kind, some in found.items()}
    return Attached(
        **vars(made),
        rows=writer.rows,
        records=target.split.records - missing.number,
        shown={kind: some.shown for kind, some in found.items()},
        **counts,
    )


def _repeated(writer: RowWriter, by: JoinBy) -> Unjoined:
    """Ends the rows; returns those with the key of another, if they are allowed."""
    found = writer.finish(*keys_of(writer, by))
    if found.number and by.repeated == "error":
        raise refused(
            f"the key of another row in {plural(found.number, 'row')}",
            found.shown,
            cure="take out the others, or choose with --repeated first or last",
        )
    return found


def _missing(
    writer: RowWriter,
    by: JoinBy,
    tasks: Begun[ShardTask],
    all_needed: bool,
    run: Mapping[str, Any],
) -> Unjoined:
    """Matches all records to rows; returns those without one, if that is allowed."""
    match = functools.partial(
        match_shard,
        directory=writer.directory,
        key=by.feature,
        texts=has_texts(writer),
        last=by.repeated == "last",
    )
    matched: list[Matched] = [*run_steps(match, tasks, **run)]
    matched.sort(key=lambda one: one.task.first_record)
    missing = sum(one.task.digest.records - one.found for one in matched)
    shown = [
        f"record {number:,}" + (f" ({key})" if by.feature else "")
        for one in matched
        for number, key in one.missing
    ][:SHOWN]
    if missing and all_needed:
        raise refused(
            f"no row, or no value in it, for {plural(missing, 'record')}",
            shown,
            cure="add rows for them, or give a value for them with --missing",
        )
    return Unjoined(missing, shown)


def _unmatched(writer: RowWriter, by: JoinBy) -> Unjoined:
    """Returns the rows without a record, if they are allowed."""
    lost = RowStore(writer.directory).unmatched()
    _, without = writer.keys()
    shown = writer.shown(lost[:SHOWN]) + ["none"] * bool(without.any())
    unmatched = len(lost) + int(without.sum())
    if unmatched and not by.allow_unmatched:
        raise refused(
            f"no record for {plural(unmatched, 'row')}",
            shown,
            cure="correct their keys, or add --allow-unmatched to leave them out",
        )
    return Unjoined(unmatched, shown)


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
    return Attached(**vars(made), records=0 if made.done_before else records)


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
