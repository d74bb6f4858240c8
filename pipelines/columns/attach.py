"""Attaching columns to the records of a split, with local processes."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.columns.column_type import ColumnType
from gristmill.dataset.commit.attached_split import (
    AttachedSplit,
    ShardTask,
    Written,
)
from gristmill.dataset.commit.attachment import Attachment
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.directory_lock import scratch_directory
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.columns.attached import SHOWN, Attached
from gristmill.pipelines.columns.column_values import (
    Matched,
    match_shard,
    write_joined,
)
from gristmill.pipelines.columns.row_keys import (
    JoinBy,
    check_feature,
    fills_of,
    has_texts,
    keys_of,
    kinds_of,
    refused,
)
from gristmill.pipelines.columns.row_store import RowStore, RowWriter
from gristmill.pipelines.columns.table_files import Tables
from gristmill.pipelines.local.pool import Done, run_tasks
from gristmill.pipelines.text.formatting import plural
from gristmill.transforms.columns.computed_values import (
    begin_columns,
    commit_columns,
    write_computed,
)

_log = logging.getLogger(__name__)


def _done_before(target: AttachedSplit, attachment: Attachment) -> Attached:
    """Returns the result of attaching columns that are there already."""
    parts = target.entries()
    names = attachment.columns
    return Attached(
        manifest=target.manifest,
        split=target.name,
        columns={name: parts[0][name].kind for name in names},
        file_bytes=sum(part[name].file_bytes for part in parts for name in names),
        done_before=True,
    )


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

    Memory: 40 bytes a row; values are kept on the disk of temporary files meanwhile.

    Args:
        dataset: The dataset's directory.
        inputs: Files of Parquet or JSON lines, or one dataset.
        by: How rows find their records.
        columns: The columns to attach; None for all but the key.
        split: The split; None for the only one.
        overwrite: Whether columns of these names are replaced.
        workers: Number of processes; by default the number of cores.
        show_progress: Whether to show progress on standard error.

    Raises:
        InputError: Records have no row, rows no record, or several rows one key, and
            that is not allowed; or tables cannot be read as columns.
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
        if target.has(attachment):
            return _done_before(target, attachment)
        last = by.repeated == "last"
        problems = writer.finish(*keys_of(writer, by))
        if problems.repeated and by.repeated == "error":
            raise refused(
                f"the key of another row in {plural(problems.repeated, 'row')}",
                problems.shown,
                cure="take out the others, or choose with --repeated first or last",
            )
        run = functools.partial(
            _run, target, workers=workers, show_progress=show_progress
        )
        tasks = [*target.tasks(attachment)]
        match = functools.partial(
            match_shard,
            directory=directory,
            key=by.feature,
            texts=has_texts(writer),
            last=last,
        )
        matched: list[Matched] = [*run(match, tasks, "matching")]
        matched.sort(key=lambda one: one.task.first_record)
        found = sum(one.found for one in matched)
        missing = sum(task.digest.records for task in tasks) - found
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
        gathered = _written(target, attachment, run, write)
        manifest, size = target.commit(attachment, kinds, gathered, source=source)
    return Attached(
        manifest=manifest,
        split=target.name,
        columns=kinds,
        file_bytes=size,
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
        overwrite: The same.
        workers: The same.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: The same.

    Raises:
        InputError: There is no such function, or no record; or the columns are there.
        UserFunctionError: It failed, or returned something else.
    """
    if beam_options is not None:
        return _computed_on_beam(dataset, function, split, overwrite, beam_options)
    target = AttachedSplit(dataset, split, overwrite=overwrite)
    computed = begin_columns(target, function)
    if target.has(computed.attachment):
        return _done_before(target, computed.attachment)
    run = functools.partial(_run, target, workers=workers, show_progress=show_progress)
    write = functools.partial(write_computed, function=function, kinds=computed.kinds)
    gathered = _written(target, computed.attachment, run, write)
    manifest, size = commit_columns(target, computed, gathered)
    return _attached_to_all(manifest, target.name, computed.kinds, size)


def _computed_on_beam(
    dataset: str,
    function: str,
    split: str | None,
    overwrite: bool,
    beam_options: Sequence[str],
) -> Attached:
    from gristmill.pipelines.beam.run_pipeline import run_pipeline
    from gristmill.transforms.beam.attach_columns import AttachColumns

    target = AttachedSplit(dataset, split, overwrite=overwrite)
    command = target.attachment([], [function, "beam"]).key
    handed_over = layout.result_path(target.manifest.name, target.name, command)
    transform = AttachColumns(
        dataset=dataset, function=function, split=target.name, overwrite=overwrite
    )
    result = run_pipeline(
        transform, beam_options, result_path=layout.join(dataset, handed_over)
    )
    if result.done_before:
        attachment = begin_columns(AttachedSplit(dataset, split), function).attachment
        return _done_before(AttachedSplit(dataset, split), attachment)
    return _attached_to_all(
        result.manifest, result.split, result.columns, result.file_bytes
    )


def _attached_to_all(
    manifest: Manifest, split: str, kinds: Mapping[str, ColumnType], size: int
) -> Attached:
    records = manifest.splits[split].records
    return Attached(
        manifest=manifest, split=split, columns=kinds, file_bytes=size, records=records
    )


def _run(
    target: AttachedSplit,
    step: Callable[[ShardTask], Any],
    tasks: Sequence[ShardTask],
    label: str,
    *,
    workers: int | None,
    show_progress: bool,
) -> Iterator[Any]:
    return run_tasks(
        step,
        tasks,
        label=label,
        noun="shards",
        stored_bytes=sum(task.file_bytes for task in tasks),
        remote=storage_for(target.dataset).remote,
        workers=workers,
        show_progress=show_progress,
        done=_done,
    )


def _done(result: Matched | Written) -> Done:
    digest = result.task.digest
    return Done(result.task.file_bytes, digest.records, digest.raw_bytes)


def _written(
    target: AttachedSplit,
    attachment: Attachment,
    run: Callable[..., Iterator[Written]],
    write: Callable[[ShardTask], Written],
) -> Gathered:
    """Writes the values of all shards."""
    attachment.begin()
    gathered = Gathered()
    for one in run(write, [*target.tasks(attachment)], "writing"):
        gathered.add(one)
        _log.info("%s: values of %d records", one.task.shard, one.task.digest.records)
    return gathered
