"""The batches of one host, read for several steps together.

Reading a step takes the same hundreds of short calls for eight rows as for a hundred,
and the calls hold the interpreter's lock. For a host with few rows a step, reading
several steps together takes a third of the time.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gristmill.dataset.base.errors import (
    DecodeError,
    InputError,
    UserFunctionError,
)
from gristmill.loader.base.indices import AnyArray, BoolArray, by_value
from gristmill.loader.data.batches import Batches, describe_row, noted, read_batch
from gristmill.loader.data.column import Column
from gristmill.loader.feed.read_ahead import WindowReads
from gristmill.loader.feed.stats import BatchesRead, ReadBatch
from gristmill.loader.order.schedule import MixedBatch, RowsBySize, Schedule, rows_of


def checked_columns(
    columns: Sequence[str], batches: Batches, decode: object
) -> tuple[str, ...]:
    """Returns the names of columns that a feed adds to its batches.

    Raises:
        InputError: They are not names, a dataset of the batches lacks one or has it
            with another type than the others, there is no dict to add them to, or
            decode asks for columns and there are none.
    """
    names = () if isinstance(columns, str) else tuple(columns)
    if not names and takes_columns(decode):
        raise InputError(
            "decode has a parameter `columns`, and the feed has no columns",
            where=repr(decode),
            expected="names of columns beside the records",
            got=f"columns={columns!r:.100}",
            cure='give the feed a list, such as columns=["score"]',
        )
    if isinstance(columns, str) or not all(isinstance(name, str) for name in names):
        raise InputError(
            "columns are not a list of names",
            got=f"columns={columns!r:.100}",
            cure='give a list, such as columns=["score"]',
        )
    if names and decode is None:
        raise InputError(
            "columns are arrays beside others, and the feed makes no arrays",
            got=f"columns={[*names]} without decode",
            cure="give the feed a decode that returns a dict of arrays",
        )
    for name in names:
        kinds = {str(dataset.column(name).kind) for dataset in batches.datasets}
        if len(kinds) > 1:
            raise InputError(
                f"the datasets of the mixture have the column {name!r} with other "
                "types",
                got=", ".join(sorted(kinds)),
                cure="attach it again with one type for all",
            )
    return names


def takes_columns(decode: object) -> bool:
    """Returns whether a decode function is called with the columns of its records.

    True if it has a parameter `columns` without a default.
    """
    if not callable(decode):
        return False
    try:
        wanted = inspect.signature(decode).parameters.get("columns")
    except (TypeError, ValueError):  # Some that are compiled do not tell.
        return False
    return wanted is not None and wanted.default is wanted.empty


def with_columns(batch: Any, columns: Mapping[str, AnyArray]) -> Any:
    """Returns the result of decode with columns added.

    Raises:
        InputError: It is not a dict of arrays, or has an array of such a name.
    """
    if not columns:
        return batch
    taken = sorted(columns.keys() & batch) if isinstance(batch, Mapping) else []
    if isinstance(batch, Mapping) and not taken:
        return {**batch, **columns}
    raise InputError(
        "decode did not return a dict that columns can be added to",
        expected=f"a dict of arrays, without {', '.join(columns)}",
        got=f"a dict with {', '.join(taken)}" if taken else type(batch).__name__,
        cure="let decode return a dict of arrays, or give it a parameter `columns`; "
        "PackedRows leaves an array out with names={NAME: None}",
    )


# Takes the records of a batch; with a parameter `columns`, also their columns.
Decode: TypeAlias = Callable[[Sequence[bytes]], Any] | Callable[..., Any]

_MOST_STEPS_AHEAD = 64
_ROWS_AHEAD = 8192


class StepReads:
    """Reads and decodes the batches of a host. Safe to share by threads.

    Args:
        batches: The global batches.
        rows: The rows of this host.
        decode: Called with the records of each batch, if given.
        in_turn: The steps, if they are read in order: several are then prepared
            together.
        mask: Name of the mask, with which a partial last batch is padded; None without
            one.
        columns: Names of columns to add to the result of `decode`, or to give it if it
            has a parameter `columns`.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        rows: RowsBySize,
        decode: Decode | None,
        in_turn: range = range(sys.maxsize),
        mask: str | None = None,
        columns: Sequence[str] = (),
    ):
        self._batches, self._rows, self._decode = batches, rows, decode
        self._columns, self._takes_columns = columns, takes_columns(decode)
        self._column = functools.lru_cache(maxsize=64)(self._opened)
        self._mask = mask
        schedule = batches.schedule
        self._windows = WindowReads.of(batches.datasets, schedule, rows, steps=in_turn)
        self._ahead = BatchesAhead(schedule, rows, every=in_turn.step)

    def read(self, steps: Sequence[int]) -> BatchesRead:
        """Returns the batches of steps, up to the first that fails.

        `decode` is called for each step. The time of all is divided evenly among them.
        """
        started = time.perf_counter()
        try:
            parts, columns = self._read(steps)
        except BaseException as e:
            # An exit such as Ctrl-C belongs to no step.
            if len(steps) > 1 and isinstance(e, Exception):
                return self._read_singly(steps)
            return BatchesRead([], noted(e, steps[0]))
        done = time.perf_counter()
        decoded: list[Any] = []
        error: BaseException | None = None
        for step, records, values in zip(steps, parts, columns, strict=True):
            try:
                decoded.append(self._decoded(step, records, values))
            except BaseException as e:
                error = noted(e, step)
                break
        ended = time.perf_counter()
        share = 1 / max(len(decoded), 1)
        batches = [
            ReadBatch(
                step=step,
                batch=batch,
                records=len(records),
                record_bytes=sum(map(len, records)),
                read_seconds=(done - started) * share,
                decode_seconds=(ended - done) * share,
            )
            for step, records, batch in zip(steps, parts, decoded, strict=False)
        ]
        return BatchesRead(batches, error)

    def _read_singly(self, steps: Sequence[int]) -> BatchesRead:
        """Reads step by step, to find the step that fails."""
        batches: list[ReadBatch] = []
        for step in steps:
            found = self.read([step])
            batches += found.batches
            if found.error is not None:
                return BatchesRead(batches, found.error)
        return BatchesRead(batches)

    def _read(
        self, steps: Sequence[int]
    ) -> tuple[list[list[bytes]], list[dict[str, AnyArray]]]:
        """Returns the records of each step, and their columns."""
        parts: list[list[bytes]] = []
        if self._windows is not None:
            parts = [self._windows.read(step) for step in steps]
            if not self._columns:
                return parts, [{} for _ in steps]
        wanted = [self._ahead.batch(step) for step in steps]
        together = wanted[0]
        if len(wanted) > 1:
            together = MixedBatch(*map(np.concatenate, zip(*wanted, strict=True)))
        if self._windows is None:
            records = iter(read_batch(self._batches, together))
            sizes = (len(batch.records) for batch in wanted)
            parts = [list(itertools.islice(records, size)) for size in sizes]
        if not self._columns:
            return parts, [{} for _ in steps]
        ends = np.cumsum([len(batch.records) for batch in wanted[:-1]])
        values = self._values(together)
        split = (np.split(each, ends) for each in values.values())
        columns = [
            dict(zip(values, own, strict=True)) for own in zip(*split, strict=True)
        ]
        return parts, columns

    def _opened(self, number: int, name: str) -> Column:
        return self._batches.datasets[number].column(name)

    def _values(self, batch: MixedBatch) -> dict[str, AnyArray]:
        """Returns the columns of a batch's records, each `[rows, *shape]`, by name."""
        found = {}
        first = int(batch.datasets[0]) if len(batch.datasets) else 0
        for name in self._columns:
            found[name] = self._column(first, name).kind.empty(len(batch.records))
            for number, rows in by_value(batch.datasets):
                own = self._column(number, name).read(batch.records[rows])
                found[name][rows] = own
        return found

    def _decoded(
        self,
        step: int,
        records: list[bytes],
        columns: Mapping[str, AnyArray],
    ) -> Any:
        if self._decode is None:
            return records
        schedule, rows = self._batches.schedule, self._rows
        there = None if self._mask is None else rows_there(schedule, step, rows)
        if there is not None and not there.any():
            # All rows of this host are padding: the first of all tells their shapes.
            rows = slice(0, 1)
            batch = schedule.batch(step, rows)
            records, columns = read_batch(self._batches, batch), self._values(batch)
        try:
            given = {"columns": dict(columns)} if self._takes_columns else {}
            batch = self._decode(records, **given)
        except DecodeError as e:
            place = schedule.positions(step, rows)[e.row]
            row = int(place) - schedule.start(step)
            raise e.of(describe_row(self._batches, step, row)) from e
        except BaseException as e:
            if isinstance(e, Exception) and not isinstance(e, StopIteration):
                raise
            # StopIteration would end the feed, SystemExit its worker.
            raise UserFunctionError(
                "decode ended instead of returning a batch",
                got=repr(e),
                cure="let decode raise an error of its own",
            ) from e
        if not self._takes_columns:
            batch = with_columns(batch, columns)
        if self._mask is None or there is None:
            return batch
        return filled_up(batch, there, mask=self._mask)


class BatchesAhead:
    """`Schedule.batch` for a caller that asks for step after step. Safe for threads.

    It computes some thousands of rows together, those of every `every`-th step.
    """

    def __init__(
        self,
        schedule: Schedule,
        rows: RowsBySize,
        *,
        every: int = 1,
    ):
        self._schedule, self._rows, self._every = schedule, rows, every
        self._batches = dict[int, MixedBatch]()
        self._lock = threading.Lock()

    def batch(self, step: int) -> MixedBatch:
        """Returns the datasets and record indices of the rows of a step."""
        with self._lock:
            if step not in self._batches:
                self._batches = self._from(step)
            return self._batches[step]

    def _from(self, step: int) -> dict[int, MixedBatch]:
        positions = [self._schedule.positions(step, self._rows)]
        most = min(max(1, _ROWS_AHEAD // max(len(positions[0]), 1)), _MOST_STEPS_AHEAD)
        last = min(step + most * self._every, self._schedule.step_limit)
        steps = range(step, last, self._every)
        positions += [
            self._schedule.positions(number, self._rows) for number in steps[1:]
        ]
        together = self._schedule.batch_at(np.concatenate(positions))
        ends = np.cumsum([len(part) for part in positions[:-1]])
        parts = (np.split(column, ends) for column in together)
        batches = (MixedBatch(*columns) for columns in zip(*parts, strict=True))
        return dict(zip(steps, batches, strict=True))


def rows_there(schedule: Schedule, step: int, rows: RowsBySize) -> BoolArray:
    """Returns which rows of a host exist in a step: all but in a partial last batch."""
    full, first = schedule.batch_size(step), schedule.start(step)
    there: BoolArray = np.arange(full) < schedule.stop - first
    return there[rows_of(rows, full, full)]


def filled_up(batch: Any, there: BoolArray, *, mask: str) -> dict[str, Any]:
    """Returns a batch padded with zeros for the missing rows, and its mask.

    Args:
        batch: The result of decode for the existing rows; if there is none, for a row
            of another host, which gives the types and shapes.
        there: Which rows exist, bool [rows].
        mask: The name that `there` gets in the batch.

    Raises:
        InputError: The batch is not a dict of arrays with one row for each record,
            or has that name already.
    """
    if not isinstance(batch, Mapping) or mask in batch:
        raise InputError(
            "decode did not return a dict that a mask can be added to",
            expected=f"a dict of arrays, without {mask!r}",
            got=f"a dict with {mask!r}" if isinstance(batch, Mapping) else _kind(batch),
            cure="let decode return a dict of arrays, or choose another name as mask",
        )
    filled = {name: _filled(part, there, str(name)) for name, part in batch.items()}
    return filled | {mask: there}


def _filled(part: Any, there: BoolArray, where: str) -> Any:
    if isinstance(part, Mapping):
        return {
            name: _filled(inner, there, f"{where}.{name}")
            for name, inner in part.items()
        }
    rows = max(int(there.sum()), 1)
    if not isinstance(part, np.ndarray) or not part.ndim or len(part) != rows:
        raise InputError(
            "decode returned a value that cannot be padded with rows of zeros",
            where=where,
            expected=f"a numpy array with a row for each record, {rows:,}",
            got=_kind(part),
            cure="let decode return arrays with the records along the first axis: pad "
            "the lists of a RaggedFeature to one length",
        )
    if there.any() and there.all():
        return part
    fill = b"" if part.dtype == object else 0
    out = np.full((len(there), *part.shape[1:]), fill, part.dtype)
    if there.any():
        out[there] = part
    return out


def _kind(part: Any) -> str:
    if isinstance(part, np.ndarray):
        return f"an array of shape {part.shape}"
    return type(part).__name__


def check_mask(mask: str, decode: Decode | None, schedule: Schedule) -> None:
    """Refuses a mask for a feed without arrays, or without a partial last batch.

    Raises InputError.

    Args:
        mask: Name of the array.
        decode: The decoder of the feed.
        schedule: The steps of the batches.
    """
    if not isinstance(mask, str):
        raise InputError(
            "the mask is not the name of an array",
            expected="a text",
            got=f"mask={mask!r:.100}",
            cure='give a name, such as mask="mask"',
        )
    if decode is None:
        raise InputError(
            "a mask is an array beside others, and the feed makes no arrays",
            got=f"mask={mask!r} without decode",
            cure="give the feed a decode that returns a dict of arrays",
        )
    if schedule.drop_remainder or schedule.steps is None:
        raise InputError(
            "a mask tells the rows that fill up a last batch, and these batches leave "
            "out a last one that is not full, or have no end",
            got=f"mask={mask!r} with drop_remainder={schedule.drop_remainder}, "
            f"epochs={schedule.phases[-1].orders[0].epochs}",
            cure="make the batches with epochs=1, drop_remainder=False",
        )
