"""`ColumnWriter`: values of a Python loop as columns beside a dataset's records."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import DataLossError, InputError, InvalidDatasetError
from gristmill.dataset.columns.column_file import (
    ColumnType,
    check_column_name,
    decode_column,
)
from gristmill.dataset.columns.expression import compared
from gristmill.dataset.commit.attached_split import (
    AttachedSplit,
    ShardTask,
    Written,
    write_values,
)
from gristmill.dataset.commit.listings import walk
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import StoredColumn
from gristmill.dataset.metadata.layout import VALUES
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.lookup import delete_all, storage_for
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.dataset.writer.parts import checked_part

Types = Mapping[str, str | tuple[str, Sequence[int]]]
"""The type of each column: a number's name as numpy has it, or `text`; with a shape."""


class ColumnWriter:
    """Writes columns that a program computes, such as logits, weights or scores.

    ::

        with ColumnWriter("c4", {"score": "float32"}, source="model 7") as writer:
            for scores in batches_of_scores:
                writer.write({"score": scores})

    The values come in the order of the records, any number at a time. When the `with`
    statement ends, the columns are committed. If an error leaves it, or the process is
    killed, nothing is visible. The values of finished shards are kept: a writer with
    the same arguments and `resume` continues after them.

    With `parts`, several writers, in processes or machines, each write the values of
    some shards. `commit_columns` then commits all parts together.

    For one thread at a time. Memory: the values of a shard.

    Args:
        path: The dataset's directory, local or `gs://`.
        columns: The types of the columns, by name: such as `float32`, `text`, or for an
            array per record `("float16", (2048,))`.
        source: The program or model that computes them, with its version. It identifies
            the values, so that no writer continues those of another source.
        split: The split; None for the only one.
        part: Number of the part that this writer writes, from 0.
        parts: In how many parts the columns are written.
        resume: Whether to continue after the shards that are finished: ask
            `position_records` where.
        overwrite: Whether columns of these names are replaced.

    Raises:
        InputError: A type is unknown, or a column of this name exists already.
    """

    def __init__(
        self,
        path: StrPath,
        columns: Types,
        *,
        source: str = "",
        split: str | None = None,
        part: int | None = None,
        parts: int | None = None,
        resume: bool = False,
        overwrite: bool = False,
    ):
        number, count = checked_part(part, parts)
        self._columns = _Columns(path, columns, source, split, overwrite=overwrite)
        every = self._columns.tasks
        first, stop = (len(every) * n // count for n in (number, number + 1))
        self._tasks, self._commits = every[first:stop], parts is None
        self._begin = every[first].first_record if self._tasks else 0
        self._stop = self._tasks[-1].stop_record if self._tasks else 0
        self._resume, self._gathered = resume, Gathered()
        self._held: list[dict[str, npt.NDArray[Any]]] = []  # Of the next shard.
        self._held_records = self._done = self._records = 0
        self._open = False

    @property
    def records(self) -> range:
        """The numbers of the records whose values this writer takes."""
        return range(self._begin, self._stop)

    @property
    def position_records(self) -> int:
        """The number of the record whose values come next."""
        return self._begin + self._records

    def __enter__(self) -> Self:
        """Takes over the work; raises StorageError."""
        columns = self._columns
        if columns.target.is_done(columns.attachment):
            self._done, self._records = len(self._tasks), len(self.records)
            return self
        columns.attachment.begin()
        if not self._resume:
            columns.delete(self._tasks)
        for task in self._tasks if self._resume else ():
            if (found := columns.finished(task)) is None:
                break
            self._keep(found)
        self._records = sum(task.digest.records for task in self._tasks[: self._done])
        self._open = True
        return self

    def write(self, values: Mapping[str, npt.ArrayLike]) -> None:
        """Appends values of the next records.

        Args:
            values: The values of each column, by name: `[n, *shape]`.

        Raises:
            InputError: They are of other columns, types or shapes, or there are more
                than records.
            StorageError: They cannot be written.
        """
        if not self._open:
            raise self._refused(
                "the writer takes no values: they are committed, or its `with` "
                "statement has ended",
                "write within `with ColumnWriter(...)`, or replace them with "
                "overwrite=True",
            )
        kinds = self._columns.kinds
        given = {name: _typed(kinds.get(name), values[name], name) for name in values}
        counts = {len(each) for each in given.values()}
        if given.keys() != kinds.keys() or len(counts) > 1:
            raise self._refused(
                f"values of {', '.join(given) or 'no column'}, {counts or 0} records",
                f"give as many values of each of {', '.join(kinds)}",
            )
        (count,) = counts
        if self.position_records + count > self._stop:
            raise self._refused(
                f"there are values for more records than the {len(self.records):,}",
                "give one for each record",
            )
        self._records += count
        self._hold(given, count)

    def _hold(self, given: Mapping[str, npt.NDArray[Any]], count: int) -> None:
        """Holds values of the next records, and writes each shard that is complete."""
        begin = 0
        while self._done < len(self._tasks):
            wanted = self._tasks[self._done].digest.records - self._held_records
            stop = min(begin + wanted, count)
            self._held.append({name: given[name][begin:stop] for name in given})
            self._held_records += stop - begin
            if stop - begin < wanted:
                return
            begin = stop
            self._write_shard()

    def _write_shard(self) -> None:
        values = {
            name: np.concatenate([kind.empty(), *(p[name] for p in self._held)])
            for name, kind in self._columns.kinds.items()
        }
        self._held, self._held_records = [], 0
        self._keep(write_values(self._tasks[self._done], values))

    def _keep(self, written: Written) -> None:
        written.gather(self._gathered)
        self._done += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commits the columns, unless an error leaves the statement.

        Raises:
            InputError: There are no values for the last records.
            JobChangedError: The work was given up meanwhile.
            StorageChangedError: The split was changed meanwhile.
        """
        was_open, self._open = self._open, False
        if error is not None or not was_open:
            return
        self._hold({n: kind.empty() for n, kind in self._columns.kinds.items()}, 0)
        if self._done < len(self._tasks):
            raise self._refused(
                f"there are no values for the records from {self.position_records:,} "
                f"to {self._stop:,}",
                "continue with resume=True: finished shards are kept",
            )
        if self._commits:
            self._columns.commit(self._gathered)

    def _refused(self, what: str, cure: str) -> InputError:
        where = f"{self._columns.where}, record {self.position_records:,}"
        return InputError(what, where=where, cure=cure)


def commit_columns(
    path: StrPath,
    columns: Types,
    *,
    source: str = "",
    split: str | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Commits columns whose parts several writers have written.

    Call it once all writers have ended, with their arguments. It can be repeated.

    Returns:
        The dataset as it is now.

    Raises:
        DataLossError: Values of a shard are not written.
        InputError: As for `ColumnWriter`.
        JobChangedError: No writer has begun, or the work was given up.
    """
    found = _Columns(path, columns, source, split, overwrite=overwrite)
    if found.target.is_done(found.attachment):
        return found.target.manifest
    written = [found.finished(task) for task in found.tasks]
    if missing := written.count(None):
        raise DataLossError(
            f"values of {missing:,} of {len(written):,} shards are not written",
            where=found.where,
            got=f"none for {found.tasks[written.index(None)].shard}",
            cure="write these parts with resume=True, then commit again",
        )
    return found.commit(Gathered.of(one for one in written if one is not None))


class _Columns:
    """The columns to write, and the shards of their records."""

    def __init__(
        self,
        path: StrPath,
        columns: Types,
        source: str,
        split: str | None,
        *,
        overwrite: bool,
    ):
        dataset = path_text(path, "dataset")
        self.kinds = {check_column_name(name): _kind(columns[name]) for name in columns}
        if not self.kinds:
            raise InputError("no column is given", cure='such as {"score": "float32"}')
        self.target = AttachedSplit(
            dataset.rstrip("/") or dataset, split, overwrite=overwrite
        )
        types = {name: str(kind) for name, kind in self.kinds.items()}
        about = {"writer": source}
        self.attachment = self.target.attachment(self.kinds, [about, types], about)
        self.tasks = [*self.target.tasks(self.attachment)]
        self.where = f"{self.target.dataset}, split {self.target.name}"

    def _paths(self, task: ShardTask) -> dict[str, str]:
        key = self.attachment.write.id
        return {name: layout.column_path(task.shard, name, key) for name in self.kinds}

    def delete(self, tasks: Sequence[ShardTask]) -> None:
        """Deletes an earlier writer's files of some shards."""
        dataset = self.target.dataset
        gone = {path for task in tasks for path in self._paths(task).values()}
        there = walk(dataset, (VALUES,))
        delete_all(one.info for one in there if one.path in gone)

    def finished(self, task: ShardTask) -> Written | None:
        """Returns the files of a shard if all are there and whole."""
        files = {}
        for name, path in self._paths(task).items():
            place = layout.join(self.target.dataset, path)
            content = storage_for(place).load(place)
            if content is None:
                return None
            data, kind = content.data, self.kinds[name]
            with contextlib.suppress(InvalidDatasetError):
                decode_column(data, path=place, kind=kind, records=task.digest)
                files[name] = StoredColumn(path, len(data), google_crc32c.value(data))
        return Written(task, files) if files.keys() == self.kinds.keys() else None

    def commit(self, gathered: Gathered) -> Manifest:
        """Commits all; raises as `AttachedSplit.commit` does."""
        return self.target.commit(self.attachment, gathered)


def _kind(given: str | tuple[str, Sequence[int]]) -> ColumnType:
    try:
        dtype, shape = (given, ()) if isinstance(given, str) else given
        return ColumnType(dtype, tuple(shape))
    except (ValueError, TypeError) as e:
        raise InputError(
            "not the type of a column",
            expected='such as "float32", "text" or ("float16", (2048,))',
            got=repr(given),
            cure="correct it",
        ) from e


def _typed(kind: ColumnType | None, values: Any, name: str) -> npt.NDArray[Any]:
    """Returns a copy of values as an array of a column's type.

    Fractions are rounded; whole numbers stay as they are, and no number becomes
    infinite.
    """
    array = np.asarray(values, object if kind is not None and kind.is_text else None)
    if kind is not None and array.ndim and array.shape[1:] == kind.shape:
        if kind.is_text and all(isinstance(each, str) for each in array):
            return array.copy()
        wanted = np.dtype("O") if kind.is_text else np.dtype(kind.dtype)
        if not kind.is_text and np.can_cast(array.dtype, wanted, "same_kind"):
            with np.errstate(over="ignore"):
                made = array.astype(wanted)
            if wanted.kind == array.dtype.kind == "f":
                exact = np.isfinite(made) == np.isfinite(array)
            else:
                exact = compared(operator.eq, made, array)
            if exact.all():
                return made
            raise InputError(
                f"the column {name!r} cannot hold a value",
                expected=f"values that {kind} has",
                got=array[~exact][0],
                cure="give the column another type",
            )
        if not array.size:
            return kind.empty()
    raise InputError(
        f"not values of the column {name!r}",
        expected="no such column" if kind is None else f"an array of {kind}, [n, ...]",
        got=f"{array.dtype} of shape {array.shape}",
        cure="give one value of this type for each record",
    )
