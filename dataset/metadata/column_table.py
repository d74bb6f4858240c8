"""The files of a column of an edition: their table, and its entry in `dataset.json`.

Each file is bound to the digest of its shard's records. The table has the digests too,
so that a column of other data is refused without opening a file.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import check_columns, columns_of
from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    parsed,
    some_of,
)
from gristmill.dataset.columns.column_file import ColumnType, Values, decode_column
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_table import (
    SHARD_TYPES,
    WRITTEN_DIGEST,
    FileTable,
    ShardTable,
    read_described,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for

_FILE_COLUMNS = {"file_bytes": "<i8", "file_crc32c": "<u4"}
_TYPES = _FILE_COLUMNS | {name: SHARD_TYPES[name] for name in WRITTEN_DIGEST}
_CURE = "restore it from a copy, or attach the column again with --overwrite"


class StoredColumn(NamedTuple):
    """A file of a column.

    Attributes:
        path: Relative to the dataset.
        file_bytes: Its size.
        file_crc32c: The crc32c of its bytes.
    """

    path: str
    file_bytes: int
    file_crc32c: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnEntry:
    """A column of an edition, as `dataset.json` has it.

    Attributes:
        kind: The type of the values.
        table: The table of its files, relative to the dataset.
        table_bytes: Size of that file.
        table_crc32c: Checksum of that file.
        file_bytes: Size of all files of values.
        source: The origin of its values.
    """

    kind: ColumnType
    table: str
    table_bytes: int
    table_crc32c: int
    file_bytes: int
    source: Mapping[str, Any]

    def described(self) -> dict[str, Any]:
        """Returns it as an object of JSON."""
        fields = {name: getattr(self, name) for name in _COUNTS}
        return {
            **self.kind.described(),
            "table": self.table,
            **fields,
            "source": dict(self.source),
        }

    @classmethod
    def parse(cls, fields: Any) -> Self:
        """Returns the entry that `described` wrote; others raise a builtin error."""
        counts = {name: fields[name] for name in _COUNTS}
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in counts.values()):
            raise ValueError(f"not the sizes of a column: {counts!a}")
        if not isinstance(fields["source"], dict):
            raise TypeError("a column has no source")
        table = layout.check_relative(fields["table"], where="a column")
        kind = ColumnType.parse(fields)
        return cls(kind=kind, table=table, **counts, source=fields["source"])


_COUNTS = ("table_bytes", "table_crc32c", "file_bytes")


def column_entries(edition: Split, where: str) -> dict[str, ColumnEntry]:
    """Returns the columns of an edition, by name.

    Args:
        edition: The edition.
        where: The dataset, for messages.

    Raises:
        InvalidDatasetError: `dataset.json` describes one in a way that is not known.
    """
    found = {}
    for name, fields in edition.columns.items():
        with parsed(
            f"dataset.json has a bad description of the column {name}", where, _CURE
        ):
            found[name] = ColumnEntry.parse(fields)
    return found


def common_columns(split: Split, where: str) -> dict[str, ColumnType]:
    """Returns the types of the columns that all editions of a split have alike."""
    parts = [column_entries(part, where) for part in split.parts]
    return {
        name: entry.kind
        for name, entry in parts[0].items()
        if all(name in part and part[name].kind == entry.kind for part in parts)
    }


class ColumnTable(FileTable):
    """The files of a column, with their sizes and checksums."""

    _noun, _cure = "table of a column", _CURE

    @classmethod
    def of(cls, files: Iterable[StoredColumn], shards: ShardTable) -> Self:
        """Returns the table of files, given the table of their shards."""
        rows = [*files]
        facts = [(file.file_bytes, file.file_crc32c) for file in rows]
        columns = columns_of(_FILE_COLUMNS, facts)
        columns |= {name: shards.columns[name] for name in WRITTEN_DIGEST}
        return cls(paths=[file.path for file in rows], columns=columns)

    def file(self, shard: int) -> StoredColumn:
        """Returns the file of a shard."""
        sizes = (int(self.columns[name][shard]) for name in _FILE_COLUMNS)
        return StoredColumn(self.paths[shard], *sizes)

    @classmethod
    def _check(cls, columns: dict[str, npt.NDArray[Any]], shards: int) -> None:
        check_columns(columns, _TYPES, shards)


def write_column(
    dataset: str, shard: str, column: str, write_id: str, data: bytes
) -> StoredColumn:
    """Writes the values of a shard's records."""
    path = layout.column_path(shard, column, write_id)
    storage_for(dataset).write(layout.join(dataset, path), data)
    return StoredColumn(path, len(data), google_crc32c.value(data))


def write_column_table(
    dataset: str,
    path: str,
    kind: ColumnType,
    table: ColumnTable,
    *,
    source: Mapping[str, Any],
) -> ColumnEntry:
    """Writes the table of a column, and returns its entry for `dataset.json`."""
    data = table.encode()
    storage_for(dataset).write(layout.join(dataset, path), data)
    return ColumnEntry(
        kind=kind,
        table=path,
        table_bytes=len(data),
        table_crc32c=google_crc32c.value(data),
        file_bytes=int(table.columns["file_bytes"].sum()),
        source=source,
    )


def read_column_table(
    dataset: str,
    entry: ColumnEntry,
    shards: ShardTable | None = None,
    rows: slice = slice(None),
) -> ColumnTable:
    """Reads the table of a column of an edition.

    Args:
        dataset: The dataset's directory.
        entry: The column.
        shards: A table with the shards that it must belong to; None for any.
        rows: The rows of the edition in that table.

    Raises:
        InvalidDatasetError: It is damaged, or belongs to other records.
    """
    path = layout.join(dataset, entry.table)
    data = read_described(
        *(path, entry.table_bytes, entry.table_crc32c),
        what="table of a column",
        cure=_CURE,
    )
    table = ColumnTable.decode(data, where=path)
    table.check_paths(where=path)
    if shards is None:
        return table
    pairs = ((table.columns[n], shards.columns[n][rows]) for n in WRITTEN_DIGEST)
    if not all(itertools.starmap(np.array_equal, pairs)):
        raise InvalidDatasetError(
            "column was attached to other records",
            where=path,
            expected=shards.digest(rows).summary,
            got=table.digest().summary,
            cure="attach it again with --overwrite: a shard was written again since",
        )
    return table


def read_values(
    dataset: str, kind: ColumnType, table: ColumnTable, shard: int
) -> Values:
    """Returns all values of a shard; raises InvalidDatasetError if they are damaged."""
    place = layout.join(dataset, table.paths[shard])
    data, records = storage_for(dataset).read(place), table.digest(shard)
    return decode_column(data, path=place, kind=kind, records=records)


def named_values(dataset: str, split: Split) -> set[str]:
    """Returns the files of values that any known edition of a split names."""
    return {
        path
        for part in split.known.values()
        for entry in column_entries(part, dataset).values()
        for path in read_column_table(dataset, entry).paths
    }


def missing_column(
    split: Split | None, name: str, *, where: str, known: Iterable[str]
) -> InputError:
    """Returns the error for a column that a split lacks, or some of its editions."""
    parts = () if split is None else split.parts
    having = [part.edition for part in parts if name in part.columns]
    if not having or split is None:
        return InputError(
            f"the dataset has no column {name!r}",
            where=where,
            expected=f"one of {some_of(known, 20)}" if [*known] else None,
            got=None if [*known] else "no columns beside its records",
            cure="correct the name, or attach it with `gristmill attach`",
        )
    return InputError(
        f"not all editions have the column {name!r} alike",
        where=where,
        expected=f"editions {some_of(split.numbers, 20)}",
        got=f"editions {some_of(having, 20)}",
        cure="attach it again with `gristmill attach --overwrite`: that gives values "
        "to the records of all editions",
    )
