"""Attaching columns to the records of a split, with local processes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gristmill import __version__
from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.columns.column_type import ColumnType, check_column_name
from gristmill.dataset.commit.attachment import Attachment
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    ColumnTable,
    StoredColumn,
    column_entries,
    write_column_table,
)
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.open_manifest import chosen_split, open_manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader import open as open_dataset
from gristmill.pipelines.columns.attached import SHOWN, Attached
from gristmill.pipelines.columns.column_values import (
    Matched,
    ShardTask,
    Written,
    kinds_of_function,
    match_shard,
    write_computed,
    write_joined,
)
from gristmill.pipelines.columns.row_store import RowStore, RowWriter, key_numbers
from gristmill.pipelines.columns.table_files import Tables
from gristmill.pipelines.columns.typed_values import filled
from gristmill.pipelines.local.pool import Done, run_tasks
from gristmill.pipelines.removal.find_places import find_places
from gristmill.pipelines.text.formatting import plural
from gristmill.pipelines.text.location import FilePlace
from gristmill.transforms.functions.user_functions import code_digest

Repeated = Literal["error", "first", "last"]
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinBy:
    """How the rows of tables find their records.

    Attributes:
        feature: The feature of the records with the key; None to find them otherwise.
        key: The columns of the tables with the key: one, or file and place.
        repeated: Which of several rows with a key is taken.
        allow_unmatched: Whether rows may have no record.
        fill: The value for records without a row, or by column; None for an error.
    """

    feature: str | None
    key: tuple[str, ...]
    repeated: Repeated = "error"
    allow_unmatched: bool = False
    fill: Any = None


class _Target:
    """The split that gets columns."""

    def __init__(self, dataset: str, split: str | None, *, overwrite: bool):
        self.dataset, self.overwrite = dataset, overwrite
        self.manifest = open_manifest(dataset)
        self.name = chosen_split(dataset, self.manifest, split)
        self.split: Split = self.manifest.splits[self.name]

    def attachment(self, columns: Sequence[str], how: Any) -> Attachment:
        """Returns the description of columns, given all that decides on their values.

        Raises:
            InputError: A column of this name is there, and is to stay.
        """
        editions = {part.edition: part.shards_digest for part in self.split.parts}
        text = json.dumps([how, sorted(columns), sorted(editions.items())])
        key = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
        found = Attachment(
            dataset=self.dataset,
            name=self.manifest.name,
            split=self.name,
            editions=editions,
            columns=tuple(columns),
            key=key,
            replaces=self.overwrite,
        )
        taken = [n for n in columns if any(n in p.columns for p in self.split.parts)]
        if taken and not self.overwrite and not self.has(found):
            raise InputError(
                f"there is a column {taken[0]!r} already",
                where=f"{self.dataset}, split {self.name}",
                cure="add --overwrite to replace it, or rename the column",
            )
        return found

    def has(self, attachment: Attachment) -> bool:
        """Returns whether the split has these columns already."""
        return all(
            part.columns.get(column, {}).get("table")
            == attachment.table_path(part.edition, column)
            for part in self.split.parts
            for column in attachment.columns
        )

    def done(self, attachment: Attachment) -> Attached:
        """Returns the result of attaching columns that are there already."""
        parts = [column_entries(part, self.dataset) for part in self.split.parts]
        return Attached(
            manifest=self.manifest,
            split=self.name,
            columns={name: parts[0][name].kind for name in attachment.columns},
            file_bytes=sum(
                part[name].file_bytes for part in parts for name in attachment.columns
            ),
            done_before=True,
        )

    def tasks(self, attachment: Attachment) -> Iterator[ShardTask]:
        """Yields a task for each shard."""
        first = 0
        for part in self.split.parts:
            table = self.table(part.edition)
            for number, path in enumerate(table.paths):
                digest = table.digest(number)
                size = int(table.file_bytes[number])
                yield ShardTask(
                    attachment, path, part.edition, number, first, digest, size
                )
                first += digest.records

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def table(self, edition: int) -> ShardTable:
        """Returns the table of the shards of an edition."""
        return read_table(self.dataset, self.split.part(edition))


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
    target, tables = _Target(dataset, split, overwrite=overwrite), Tables.find(inputs)
    _check_feature(target, by)
    with tempfile.TemporaryDirectory(prefix="gristmill-attach-") as directory:
        writer = RowWriter(directory, by.key, columns)
        wanted = None if columns is None else [*dict.fromkeys([*by.key, *columns])]
        for rows in tables.rows(wanted):
            writer.add(rows)
        kinds = _kinds(writer, inputs)
        fill = _fills(kinds, by.fill)
        how = [dataclasses.asdict(by), tables.identity, repr(fill)]
        attachment = target.attachment([*kinds], how)
        if target.has(attachment):
            return target.done(attachment)
        last = by.repeated == "last"
        problems = writer.finish(*_keys(target, writer, by))
        if problems.repeated and by.repeated == "error":
            raise _refused(
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
            texts=_has_texts(writer),
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
            raise _refused(
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
            raise _refused(
                f"no record for {plural(unmatched, 'row')}",
                lost_keys,
                cure="correct their keys, or add --allow-unmatched to leave them out",
            )
        write = functools.partial(
            write_joined, directory=directory, fill=fill or {}, last=last
        )
        source = {"files": [*inputs][:SHOWN], "rows": writer.rows, "key": [*by.key]}
        manifest, size = _write(target, attachment, kinds, run, tasks, write, source)
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
        show_progress: The same.

    Raises:
        InputError: There is no such function, or no record; or the columns are there.
        UserFunctionError: It failed, or returned something else.
    """
    target = _Target(dataset, split, overwrite=overwrite)
    digest = code_digest(function)
    if not target.split.records:
        raise InputError(
            "the split has no records to compute columns from",
            where=f"{dataset}, split {target.name}",
            cure="choose another with --split",
        )
    opened = open_dataset(dataset, target.name, edition=target.split.edition)
    kinds = kinds_of_function(function, opened[0])
    for name in kinds:
        check_column_name(name)
    attachment = target.attachment([*kinds], [function, digest])
    if target.has(attachment):
        return target.done(attachment)
    run = functools.partial(_run, target, workers=workers, show_progress=show_progress)
    write = functools.partial(write_computed, function=function, kinds=kinds)
    source = {"map": function, "code_digest": digest}
    tasks = [*target.tasks(attachment)]
    manifest, size = _write(target, attachment, kinds, run, tasks, write, source)
    return Attached(
        manifest=manifest,
        split=target.name,
        columns=kinds,
        file_bytes=size,
        records=target.split.records,
    )


def _run(
    target: _Target,
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


def _write(
    target: _Target,
    attachment: Attachment,
    kinds: Mapping[str, ColumnType],
    run: Callable[..., Iterator[Written]],
    tasks: Sequence[ShardTask],
    write: Callable[[ShardTask], Written],
    source: Mapping[str, Any],
) -> tuple[Manifest, int]:
    """Writes the values of all shards and commits; returns the size of the files."""
    attachment.begin()
    files: dict[tuple[int, int], Mapping[str, StoredColumn]] = {}
    for one in run(write, tasks, "writing"):
        files[one.task.edition, one.task.number] = one.files
        _log.info("%s: values of %d records", one.task.shard, one.task.digest.records)
    attachment.check_current()
    made: dict[int, dict[str, ColumnEntry]] = {}
    source = {**source, "gristmill_version": __version__}
    for part in target.split.parts:
        shards, number = target.table(part.edition), part.edition
        own = [files[number, shard] for shard in range(len(shards))]
        made[number] = {
            name: write_column_table(
                target.dataset,
                attachment.table_path(number, name),
                kind,
                ColumnTable.of((each[name] for each in own), shards),
                source=source,
            )
            for name, kind in kinds.items()
        }
    size = sum(one.file_bytes for each in made.values() for one in each.values())
    return attachment.commit(made), size


def _check_feature(target: _Target, by: JoinBy) -> None:
    if by.feature is not None and target.split.packed is not None:
        raise InputError(
            "packed rows have no features to join by",
            where=f"{target.dataset}, split {target.name}",
            got=f"the feature {by.feature!r}",
            cure="give the number of the row with --number, or compute the column with "
            "--map",
        )


def _kinds(writer: RowWriter, inputs: Sequence[str]) -> dict[str, ColumnType]:
    kinds = {name: kind for name, kind in writer.kinds.items() if kind is not None}
    nothing = [name for name in writer.kinds if name not in kinds]
    if nothing or not kinds:
        raise InputError(
            f"the column {nothing[0]!r} has no value"
            if nothing
            else "the tables have no column besides the key",
            where=some_of(inputs),
            cure="name those to attach with --columns",
        )
    return kinds


def _fills(kinds: Mapping[str, ColumnType], given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    fills = given if isinstance(given, dict) else dict.fromkeys(kinds, given)
    if fills.keys() != kinds.keys():
        raise InputError(
            "the values for missing ones are of other columns",
            expected=", ".join(kinds),
            got=", ".join(fills),
            cure="give a value for each column with --missing, or one for all",
        )
    return {n: filled(kind, fills[n], column=n) for n, kind in kinds.items()}


def _has_texts(writer: RowWriter) -> bool:
    kind = writer.key_kinds[0]
    return kind is not None and kind.is_text


def _keys(target: _Target, writer: RowWriter, by: JoinBy) -> tuple[Any, Any]:
    """Returns the keys of rows as numbers, and the row of each."""
    columns, lost = writer.keys()
    rows = np.flatnonzero(~lost)
    kinds = [kind or ColumnType("int64") for kind in writer.key_kinds]
    if len(by.key) == 1:
        if by.feature is None and kinds[0].is_text:
            raise InputError(
                "the numbers of records are texts",
                got=f"the column {by.key[0]!r}",
                cure="write them as integers",
            )
        return key_numbers(kinds[0], columns[0][rows]) if len(rows) else rows, rows
    if not kinds[0].is_text or kinds[1].is_text:
        raise InputError(
            "rows do not name places in files",
            expected="a text with the file, and an integer with the place in it",
            got=f"{kinds[0]} and {kinds[1]}",
            cure="give the columns in this order: --place FILE,PLACE",
        )
    pairs = zip(columns[0][rows].tolist(), columns[1][rows].tolist(), strict=True)
    places = [FilePlace(path, int(at)) for path, at in pairs]
    found = [*find_places(target.dataset, target.split, places)]
    # Rows without a record get a number that no record has.
    numbers = [record for _, record in found]
    of = [int(rows[place]) for place, _ in found]
    nothing = sorted({*range(len(places))} - {place for place, _ in found})
    numbers += [-1 - place for place in nothing]
    of += rows[nothing].tolist()
    return np.array(numbers, np.int64), np.array(of, np.int64)


def _refused(what: str, shown: Sequence[str], *, cure: str) -> InputError:
    return InputError(
        what, got=some_of([*shown], SHOWN), cure=f"{cure}; nothing was attached"
    )
