"""A column of an opened dataset, as an array that loads what is indexed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError, InvalidDatasetError, ReplacedError
from gristmill.dataset.columns.column_file import ColumnFile, ColumnType, open_column
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnTable,
    column_entries,
    missing_column,
    read_column_table,
)
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.base.indices import AnyArray, IntArray, counted_from_end
from gristmill.loader.data.part import Part

_MOST_GAP_BYTES = 4 << 20  # Read through smaller gaps.
_HEAD_BYTES = 64 << 10  # The first read: all of a small file.
_AT_ONCE = 32
_KEPT_FILES = 4096
_BLOCK_RECORDS = 1 << 16


class ColumnFiles(NamedTuple):
    """The files of a column of an edition.

    Attributes:
        dataset: The dataset's directory.
        split: Name of the split.
        edition: Number of the edition.
        path: The table of the files, relative to the dataset.
        table: What it holds.
    """

    dataset: str
    split: str
    edition: int
    path: str
    table: ColumnTable


class _Opened(NamedTuple):
    path: str
    file: ColumnFile
    data: bytes | None  # All of a small file.


class Column:
    """The values of a column, one per record. Made by `Dataset.column`.

    `column[i]` is a value and counts from the end if negative; `column[[i, j, k]]` and
    `column[i:j]` are arrays; `numpy.asarray(column)` has all values. Texts are an array
    of objects. Reading costs one read for each shard, and for each run of records that
    is far from others.

    Args:
        name: The column's name.
        kind: The type of the values.
        files: The files of the editions, in the order of their records.
        ends: int64 [shards], one past the last record of each shard.
        numbers: Numbers of the column's records among those of all shards; None for
            all.
    """

    def __init__(
        self,
        name: str,
        kind: ColumnType,
        files: Sequence[ColumnFiles],
        ends: IntArray,
        *,
        numbers: AnyArray | None = None,
    ):
        self.name, self.kind = name, kind
        self._files, self._ends, self._numbers = files, ends, numbers
        stored = int(ends[-1]) if len(ends) else 0
        self._records = stored if numbers is None else len(numbers)
        counts = [len(one.table) for one in files]
        self._firsts = [*itertools.accumulate(counts, initial=0)]
        self._open = functools.lru_cache(maxsize=_KEPT_FILES)(
            functools.partial(_open_file, kind, tuple(files), tuple(self._firsts))
        )

    def __len__(self) -> int:
        return self._records

    def __repr__(self) -> str:
        return f"<Column {self.name}: {self.kind} of {len(self):,} records>"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its arrays; `object` for texts."""
        return self.kind.empty().dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all its values as one array."""
        return (len(self), *self.kind.shape)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.read(np.arange(*index.indices(len(self)), dtype=np.int64))
        array = np.asarray(index)
        if array.dtype == np.bool_ and array.shape == (len(self),):
            array = np.flatnonzero(array)
        values = self.read(counted_from_end(array, stop=len(self), where=repr(self)))
        return values[0] if array.ndim == 0 else values

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> AnyArray:
        if copy is False:
            raise ValueError("the values of a column are always copied")
        found = [self.kind.empty()]
        for begin in range(0, len(self), _BLOCK_RECORDS):
            found.append(self[begin : begin + _BLOCK_RECORDS])
        return np.concatenate(found).astype(self.dtype if dtype is None else dtype)

    def read(self, records: IntArray) -> AnyArray:
        """Returns the values of records, int64 [n] numbers in range: `[n, *shape]`.

        Raises:
            InvalidDatasetError: A file is damaged, or belongs to other records.
            StorageError: It cannot be read.
        """
        if self._numbers is not None:
            records = self._numbers[records].astype(np.int64)
        out = self.kind.empty(len(records))
        order = np.argsort(records, kind="stable")
        ordered = records[order]
        shards = np.searchsorted(self._ends, ordered, side="right")
        starts = np.flatnonzero(np.diff(shards, prepend=-1))
        bounds = [*starts.tolist(), len(records)]

        def read(run: tuple[int, int]) -> AnyArray:
            begin, end = run
            shard = int(shards[begin])
            first = int(self._ends[shard - 1]) if shard else 0
            return self._read_shard(shard, ordered[begin:end] - first)

        runs = [*itertools.pairwise(bounds)] if len(records) else []
        remote = any("://" in one.dataset for one in self._files) and len(runs) > 1
        found = map_all(read, runs, at_once=_AT_ONCE) if remote else map(read, runs)
        for (begin, end), values in zip(runs, found, strict=True):
            out[order[begin:end]] = values
        return out

    def _read_shard(self, shard: int, rows: IntArray) -> AnyArray:
        """Returns values of a shard, of ascending numbers in it."""
        path, file, whole = self._open(shard)
        storage = storage_for(path)
        out = self.kind.empty(len(rows))
        blocks = rows // file.block_records
        wanted = np.unique(blocks)
        begins, ends = file.spans(wanted)
        cuts = np.flatnonzero(begins[1:] - ends[:-1] > _MOST_GAP_BYTES) + 1
        for part in np.split(wanted, cuts):
            first, last = int(part[0]), int(part[-1]) + 1
            begin, end = file.span(first, last)
            data = storage.read(path, begin, end) if whole is None else whole[begin:end]
            values = file.decode(first, last, data, wanted=part)
            own = slice(*np.searchsorted(blocks, [first, last]))
            out[own] = values[rows[own] - first * file.block_records]
        return out


def _check_not_replaced(files: ColumnFiles) -> None:
    """Raises ReplacedError if the edition is gone, or has another column by now."""
    manifest = read_manifest(files.dataset)
    split = None if manifest is None else manifest.splits.get(files.split)
    edition = None if split is None else split.known.get(files.edition)
    columns = () if edition is None else edition.columns.values()
    if files.path not in {column.get("table") for column in columns}:
        raise ReplacedError(
            "column was replaced while it was in use",
            where=layout.join(files.dataset, files.path),
            cure="open the dataset again: it has what was attached since",
        )


def _open_file(
    kind: ColumnType,
    files: Sequence[ColumnFiles],
    firsts: Sequence[int],
    shard: int,
) -> _Opened:
    part = int(np.searchsorted(firsts, shard, side="right")) - 1
    own = files[part]
    number = shard - firsts[part]
    stored = own.table.file(number)
    path = layout.join(own.dataset, stored.path)
    storage = storage_for(path)
    small = stored.file_bytes <= _HEAD_BYTES
    head = storage.load(path, 0, min(stored.file_bytes, _HEAD_BYTES))
    size = None if head is None else head.size_bytes
    if head is None or size != stored.file_bytes:
        _check_not_replaced(own)
        raise InvalidDatasetError(
            "column is missing" if size is None else "column has the wrong size",
            where=path,
            expected=f"{stored.file_bytes:,} bytes",
            got=None if size is None else f"{size:,}",
            cure="restore it from a copy, or attach the column again with --overwrite",
        )

    def ranges(begin: int, end: int) -> bytes:
        known = head.data[begin:end]
        return known if end <= len(head.data) else storage.read(path, begin, end)

    file = open_column(
        ranges,
        path=path,
        kind=kind,
        records=own.table.digest(number),
        file_bytes=stored.file_bytes,
    )
    return _Opened(path, file, head.data if small else None)


def column_of(
    name: str,
    parts: Sequence[Part],
    ends: IntArray,
    *,
    known: Mapping[str, ColumnType],
    where: str,
    numbers: AnyArray | None,
) -> Column:
    """Returns a column of all parts.

    Args:
        name: The column's name.
        parts: The splits that were joined, in order.
        ends: int64 [shards], one past the last record of each shard of all parts.
        known: The columns that have one type in all parts.
        where: The dataset of all parts, for messages.
        numbers: Numbers of the selected records, None for all.

    Raises:
        InputError: There is no such column, or not for all records.
        InvalidDatasetError: It was attached to other records, or is damaged.
    """
    if (kind := known.get(name)) is None:
        types = [part.columns for part in parts]
        for part, columns in zip(parts, types, strict=True):
            if name not in columns:
                split = part.committed
                raise missing_column(split, name, where=part.shards.name, known=known)
        raise InputError(
            f"joined datasets have the column {name!r} with other types",
            where=where,
            got=", ".join(str(columns[name]) for columns in types),
            cure="attach it again with one type for all",
        )
    files = [file for part in parts for file in _files(part, name)]
    return Column(name, kind, files, ends, numbers=numbers)


def _files(part: Part, column: str) -> Iterator[ColumnFiles]:
    """Yields the files of a column of each edition, compared with its shards."""
    for edition, shards in part.shards_of_editions():
        entry = column_entries(edition, part.path)[column]
        rows = slice(shards.start, shards.stop)
        table = read_column_table(part.path, entry, part.table, rows)
        yield ColumnFiles(
            part.path, str(part.split), edition.edition, entry.table, table
        )
