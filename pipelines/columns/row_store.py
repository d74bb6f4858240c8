"""The rows of tables on a local disk, which any process can find by their keys.

Keys are sorted numbers: integers as they are, texts as 128 bits of their BLAKE2b.
Values stay on disk, in files that all processes map.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.columns.column_file import ColumnType, check_column_name
from gristmill.dataset.commit.attached_split import AttachedSplit
from gristmill.loader.base.indices import AnyArray, BoolArray, IntArray
from gristmill.pipelines.columns.table_files import Rows, TypedValues, filled

_NONE = -1


def key_numbers(kind: ColumnType, values: AnyArray) -> AnyArray:
    """Returns keys as numbers that are equal if the keys are: [n].

    Args:
        kind: An integer type, or that of texts.
        values: [n], the keys.
    """
    if not kind.is_text:
        if kind.dtype == "uint64" and (values >> np.uint64(63)).any():
            raise InputError(
                "a key is too large an integer",
                expected="an integer below 2^63",
                got=values.max(),
                cure="write the keys as texts",
            )
        return values.astype(np.int64)
    digest = functools.partial(hashlib.blake2b, digest_size=16)
    found = [digest(text.encode("utf-8", "surrogatepass")).digest() for text in values]
    # numpy would strip zeros at the end.
    return np.array([each + b"." for each in found], "S17")


def is_key(kind: ColumnType) -> bool:
    """Returns whether values of a type can be keys."""
    return kind.is_text or (not kind.shape and np.dtype(kind.dtype).kind in "iu")


class Unjoined(NamedTuple):
    """Rows or records without a partner of their own.

    Attributes:
        number: How many there are.
        shown: Keys of some of them.
    """

    number: int
    shown: Sequence[str]


@dataclasses.dataclass
class RowWriter:
    """Collects the rows of tables, in order.

    Args:
        directory: An empty local directory.
        key: The column with the key.
        columns: The columns to keep; None for all others.
    """

    directory: str
    key: str
    columns: Sequence[str] | None

    def __post_init__(self) -> None:
        self.rows = 0
        self.kinds: dict[str, ColumnType | None] = {}
        self.key_kind: ColumnType | None = None
        self._where: dict[str, str] = {}
        self._keys: list[AnyArray] = []
        self._lost: list[BoolArray] = []

    def add(self, rows: Rows) -> None:
        """Adds rows; raises InputError if a column has another type than before."""
        wanted = self.columns
        if wanted is None:
            wanted = [name for name in rows.columns if name != self.key]
        if self.key not in rows.columns:
            raise InputError(
                f"the table has no column {self.key!r}",
                where=rows.where,
                expected=f"one of {some_of(rows.columns, 20)}",
                cure="correct the name of the key",
            )
        keys = rows.columns[self.key]
        self.key_kind = self._kind(self.key, self.key_kind, keys.kind, rows.where)
        if keys.kind is not None and not is_key(keys.kind):
            raise InputError(
                f"the key {self.key!r} is neither a text nor an integer",
                where=rows.where,
                got=keys.kind,
                cure="join by another column",
            )
        self._keys.append(keys.values)
        self._lost.append(keys.missing)
        if self.rows and wanted and {*wanted} != {*self.kinds}:
            raise InputError(
                "tables have different columns",
                where=rows.where,
                expected=", ".join(self.kinds),
                got=", ".join(wanted),
                cure="choose those that all have with --columns",
            )
        for name in wanted:
            check_column_name(name)
            given = rows.columns[name]
            before = self.kinds.get(name)
            kind = self.kinds[name] = self._kind(name, before, given.kind, rows.where)
            if kind is not None:
                if before is None:
                    self._write(name, kind, _nothing(kind, self.rows))
                self._write(name, kind, given)
        self.rows += len(keys.missing)

    def _kind(
        self, name: str, before: ColumnType | None, now: ColumnType | None, where: str
    ) -> ColumnType | None:
        if before is None or now is None or before == now:
            self._where.setdefault(name, where)
            return before or now
        raise InputError(
            f"the column {name!r} has several types",
            where=where,
            expected=f"{before}, as in {self._where[name]}",
            got=now,
            cure="write its values with one type",
        )

    def _write(self, name: str, kind: ColumnType, given: TypedValues) -> None:
        path = os.path.join(self.directory, name)
        with open(f"{path}.missing", "ab") as file:
            file.write(given.missing.tobytes())
        with open(f"{path}.values", "ab") as file:
            if not kind.is_text:
                values = given.values if given.kind else kind.empty(len(given.missing))
                file.write(np.ascontiguousarray(values, kind.stored).tobytes())
                return
            texts = [
                b"" if lost else text.encode("utf-8", "surrogatepass")
                for text, lost in zip(given.values, given.missing, strict=True)
            ]
            begin = file.tell()
            file.write(b"".join(texts))
        with open(f"{path}.ends", "ab") as file:
            lengths = np.fromiter(map(len, texts), np.int64, len(texts))
            file.write((begin + np.cumsum(lengths)).astype(np.int64).tobytes())

    def keys(self) -> tuple[AnyArray, BoolArray]:
        """Returns the key of each row, and whether it lacks one: bool [rows]."""
        nothing = np.zeros(0, bool)
        lost = np.concatenate([nothing, *self._lost])
        return np.concatenate(self._keys or [nothing]), lost

    def finish(self, numbers: AnyArray, rows: IntArray) -> Unjoined:
        """Sorts the rows by their keys; returns those with the key of another.

        Args:
            numbers: [n], keys from `key_numbers`.
            rows: int64 [n], the row of each.
        """
        order = np.argsort(numbers, kind="stable")
        numbers, rows = numbers[order], rows[order]
        np.save(os.path.join(self.directory, "keys.npy"), numbers)
        np.save(os.path.join(self.directory, "rows.npy"), rows)
        with open(os.path.join(self.directory, "seen"), "wb") as file:
            file.truncate(max(self.rows, 1))
        kinds = {n: k.described() for n, k in self.kinds.items() if k is not None}
        with open(os.path.join(self.directory, "columns.json"), "w") as out:
            json.dump(kinds, out)
        twice = np.flatnonzero(numbers[1:] == numbers[:-1]) + 1
        return Unjoined(len(twice), self.shown(rows[twice[:20]]))

    def shown(self, rows: Iterable[int]) -> list[str]:
        """Returns the keys of rows for a message."""
        keys, _ = self.keys()
        return [str(keys[row]) for row in rows]


def _nothing(kind: ColumnType, rows: int) -> TypedValues:
    return TypedValues(None, kind.empty(rows), np.ones(rows, bool))


class RowStore:
    """The rows that a `RowWriter` has sorted, for any process.

    Args:
        directory: Its directory.
        last: Whether to take the last of several rows with a key, not the first.
    """

    def __init__(self, directory: str, *, last: bool = False):
        self._directory, self._last = directory, last
        self._keys = np.load(os.path.join(directory, "keys.npy"), mmap_mode="r")
        self._rows = np.load(os.path.join(directory, "rows.npy"), mmap_mode="r")
        self._seen = np.memmap(os.path.join(directory, "seen"), np.bool_, "r+")
        with open(os.path.join(directory, "columns.json")) as file:
            described: Mapping[str, Any] = json.load(file)
        self.kinds = {n: ColumnType.parse(fields) for n, fields in described.items()}

    def find(self, numbers: AnyArray) -> IntArray:
        """Returns the row of each key, -1 for none, and marks the rows as seen."""
        found = np.full(len(numbers), _NONE, np.int64)
        if not len(self._keys):
            return found
        side: Any = "right" if self._last else "left"
        at = np.searchsorted(self._keys, numbers, side=side) - self._last
        at = np.clip(at, 0, len(self._keys) - 1)
        same = self._keys[at] == numbers
        found[same] = self._rows[at[same]]
        self._seen[found[same]] = True
        return found

    def unmatched(self) -> IntArray:
        """Returns the rows whose keys were never searched for: int64, ascending."""
        keys, rows = np.asarray(self._keys), np.asarray(self._rows)
        if not len(keys):
            return np.zeros(0, np.int64)
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        seen = np.maximum.reduceat(self._seen[rows], starts)
        counts = np.diff(np.append(starts, len(keys)))
        return np.sort(rows[~np.repeat(seen, counts)])

    def lost(self, rows: IntArray) -> BoolArray:
        """Returns whether each row is -1 or lacks a value in some column."""
        missing: BoolArray = rows == _NONE
        for name in self.kinds:
            missing |= self._mapped(name, "missing", np.bool_)[rows] & (rows != _NONE)
        return missing

    def values(self, name: str, rows: IntArray, instead: Any) -> AnyArray:
        """Returns the values of a column.

        Args:
            name: The column.
            rows: int64 [n], -1 for none.
            instead: The value for rows without one.
        """
        kind = self.kinds[name]
        missing = rows == _NONE
        if len(self._rows):
            missing |= self._mapped(name, "missing", np.bool_)[rows]
        out = kind.empty(len(rows))
        there = rows[~missing]
        if not kind.is_text:
            if len(there) and kind.item_bytes:
                stored = self._mapped(name, "values", kind.stored)
                out[~missing] = stored.reshape(-1, *kind.shape)[there]
        elif len(there):
            ends = self._mapped(name, "ends", np.dtype(np.int64))
            blob: Any = self._mapped(name, "values", np.dtype(np.uint8))
            begins = np.where(there > 0, ends[there - 1], 0).tolist()
            texts = [
                bytes(blob[a:b]).decode("utf-8", "surrogatepass")
                for a, b in zip(begins, ends[there].tolist(), strict=True)
            ]
            found = np.empty(len(texts), object)
            found[:] = texts
            out[~missing] = found
        if missing.any():
            out[missing] = instead
        return out

    def _mapped(self, name: str, kind: str, dtype: Any) -> AnyArray:
        path = os.path.join(self._directory, f"{name}.{kind}")
        if not os.path.getsize(path):
            return np.zeros(0, dtype)
        return np.memmap(path, dtype, "r")


@functools.lru_cache(maxsize=1)
def row_store(directory: str, last: bool) -> RowStore:
    """Returns the rows in a directory, opened once in each process."""
    return RowStore(directory, last=last)


SHOWN = 20
"""Keys of rows or records that a result or an error shows."""

Repeated = Literal["error", "first", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinBy:
    """The match of rows of tables to records.

    Attributes:
        feature: The feature of the records with the key; None for their numbers.
        key: The column of the tables with the key.
        repeated: The row to take of several with one key.
        allow_unmatched: Whether rows may have no record.
        fill: The value for records without a row, or by column; None for an error.
    """

    feature: str | None
    key: str
    repeated: Repeated = "error"
    allow_unmatched: bool = False
    fill: Any = None


def check_feature(target: AttachedSplit, by: JoinBy) -> None:
    """Raises InputError if records have no features to join by."""
    if by.feature is not None and target.split.packed is not None:
        raise InputError(
            "packed rows have no features to join by",
            where=f"{target.dataset}, split {target.name}",
            got=f"the feature {by.feature!r}",
            cure="attach before packing, and pack --select by the column; or give the "
            "number of the row with --number, or a function of it with --map",
        )


def kinds_of(writer: RowWriter, inputs: Sequence[str]) -> dict[str, ColumnType]:
    """Returns the types of columns; raises InputError if one has no value."""
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


def fills_of(kinds: Mapping[str, ColumnType], given: Any) -> dict[str, Any] | None:
    """Returns the values for records without one, by column; None for an error."""
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


def has_texts(writer: RowWriter) -> bool:
    """Returns whether keys are texts."""
    return writer.key_kind is not None and writer.key_kind.is_text


def keys_of(writer: RowWriter, by: JoinBy) -> tuple[Any, Any]:
    """Returns the keys of rows as numbers, and the row of each."""
    keys, lost = writer.keys()
    rows = np.flatnonzero(~lost)
    kind = writer.key_kind or ColumnType("int64")
    if by.feature is None and kind.is_text:
        raise InputError(
            "the numbers of records are texts",
            got=f"the column {by.key!r}",
            cure="write them as integers",
        )
    return key_numbers(kind, keys[rows]) if len(rows) else rows, rows


def refused(what: str, shown: Sequence[str], *, cure: str) -> InputError:
    """Returns the error for rows or records that do not fit; some are shown."""
    return InputError(
        what, got=some_of([*shown], SHOWN), cure=f"{cure}; nothing was attached"
    )
