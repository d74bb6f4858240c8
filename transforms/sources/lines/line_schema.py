"""Lines as rows of a table: their schema, from samples, and their records."""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from gristmill.dataset.base.errors import InputError, RowError, some_of
from gristmill.dataset.formats.streams import inflated_head
from gristmill.dataset.metadata.features import encode_features
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.lines.json_values import JSON_TEXT
from gristmill.transforms.sources.lines.line_source import (
    BYTE_ORDER_MARK,
    LineParser,
    LineReader,
    Lines,
    LineSource,
    Made,
    Positions,
)
from gristmill.transforms.tables.example_rows import RowRecords, check_column
from gristmill.transforms.tables.table_features import features_of

# A little of many files tells more than much of one.
_FILES = 32
_FILE_BYTES = 256 << 10


class Sample(NamedTuple):
    """The first lines of a file, without their newlines.

    Attributes:
        path: The file.
        lines: The lines.
        item: How one is called, as by its reader.
    """

    path: str
    lines: list[bytes]
    item: str


def sample_lines(
    files: InputFiles,
    ends: Callable[[bytes], Positions],
    reader: type[LineReader] = LineReader,
) -> list[Sample]:
    """Returns the first lines of some files, in the order of the files.

    The choice depends only on their number and content: 256 KiB of each of 32 files,
    spread over all, and at least one line.
    """
    found = files.looked(lambda file: _first_lines(file, ends, reader), _FILES)
    return [Sample(file.path, lines, reader.item) for file, lines in found]


def _first_lines(
    file: InputFile, ends: Callable[[bytes], Positions], reader: type[LineReader]
) -> list[bytes]:
    data = storage_for(file.path).read(file.path, 0, _FILE_BYTES)
    whole = file.size_bytes <= len(data)
    if file.compression != "none":
        data = inflated_head(data, file.compression, _FILE_BYTES)
        whole = whole and len(data) < _FILE_BYTES
    data = reader.as_lines(data, file.path).removeprefix(BYTE_ORDER_MARK)
    places = ends(data)
    if data and (whole or not len(places)) and len(data) not in places[-1:]:
        # `np.union1d` would import numpy.ma, which takes a while.
        places = np.append(places, len(data))
    lines = Lines(data, places)
    return [lines.line(number) for number in range(len(places))]


_TYPES = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float32(),  # Numbers are rounded, as requested.
    "string": pa.large_string(),  # The text of numbers.
    "json": JSON_TEXT,
}
# Types as found, without loss.
_FOUND_TYPES = {"null": pa.null(), "double": pa.float64(), "text": pa.string()}
_ALL_TYPES = _TYPES | _FOUND_TYPES
_ALL = "*"


class LineSchema(NamedTuple):
    """The schema of the lines of all files of a job.

    Attributes:
        fields: The columns that are read, with their types.
        header: All columns of CSV, in order; empty for JSON.
    """

    fields: pa.Schema
    header: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Returns the schema as JSON."""
        fields = {field.name: _encoded(field.type) for field in self.fields}
        return json.dumps({"fields": fields, "header": self.header})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Rebuilds a schema from its text."""
        found = json.loads(text)
        fields = [(name, _parsed(kind)) for name, kind in found["fields"].items()]
        return cls(pa.schema(fields), tuple(found["header"]))


class Wanted(NamedTuple):
    """The columns that a user requests.

    Attributes:
        types: The types that were given for some, by name.
        names: All requested names; None for all columns.
    """

    types: dict[str, pa.DataType]
    names: tuple[str, ...] | None

    def has(self, name: str) -> bool:
        """Returns whether a column is wanted."""
        return self.names is None or name in self.names

    def of(self, found: Mapping[str, pa.DataType]) -> pa.Schema:
        """Returns the schema of the wanted columns among those that were found.

        Raises:
            InputError: A requested column was not found and has no type, or no column
                was found.
        """
        names = self.names or ()
        absent = [name for name in names if name not in found]
        for name in absent:
            column = name.partition(".")[0]
            is_field = name in self.types or column in found
            if column not in (*names, name) and is_field:
                raise InputError(
                    "a field of an object is not taken without the object",
                    expected="names of columns, and types of fields of these",
                    got=name,
                    cure=f"take the object too, as in --columns {column},{name}:string",
                )
        missing = [name for name in absent if name not in self.types]
        if len(absent) == len(names):
            missing = absent  # Types would not help: all records would be empty.
        if missing:
            talks = {"messages", "conversations"} & found.keys()
            chat = f"of `gristmill pack`, or give it --chat for {some_of(talks)}"
            raise InputError(
                "the input files have no such column",
                expected=f"columns among {some_of(found, 20)}",
                got=some_of(missing),
                cure="correct the names in --columns, or in --column "
                + (chat if talks else "of `gristmill pack`")
                + "; a column that begins late in the files needs its type in "
                "--columns, as in score:float, and another one beside it",
            )
        types = dict(found)
        for name, kind in self.types.items():
            column, *fields = [name] if name in found else name.split(".")
            inner = types.get(column)
            if fields and inner is not None and pa.types.is_struct(inner):
                types[column] = _with_type(inner, fields, kind)
            else:
                types[name] = kind
        return pa.schema([(n, kind) for n, kind in types.items() if self.has(n)])


def wanted_columns(columns: Sequence[str]) -> Wanted:
    """Parses `--columns`: names, possibly with a type, and `*` for all others.

    >>> wanted_columns(["a", "b:int[]"]).types
    {'b': ListType(list<item: int64>)}

    Raises:
        InputError: A type is unknown.
    """
    types: dict[str, pa.DataType] = {}
    names = []
    for column in columns:
        name, colon, kind = column.rpartition(":")
        base = kind.removesuffix("[]")
        if not colon:
            name = column
        elif base not in _TYPES:
            raise InputError(
                "unknown type in --columns",
                expected="bool, float, int, string or json, or a list such as int[]",
                got=column,
                cure="give names of columns, each with a type or without",
            )
        else:
            one = _TYPES[base]
            types[name] = pa.list_(one) if kind.endswith("[]") else one
        names.append(name)
    every = not names or _ALL in names
    return Wanted(types, None if every else tuple(names))


def _with_type(
    known: pa.DataType | None, fields: Sequence[str], kind: pa.DataType
) -> pa.DataType:
    """Returns the type of an object with another type for a nested field."""
    if not fields:
        return kind
    inner = {}
    if known is not None and pa.types.is_struct(known):
        inner = {field.name: field.type for field in known}
    first, *rest = fields
    return pa.struct({**inner, first: _with_type(inner.get(first), rest, kind)}.items())


def _encoded(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return [_encoded(kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: _encoded(field.type) for field in kind}
    return next(name for name, known in _ALL_TYPES.items() if known.equals(kind))


def _parsed(text: Any) -> pa.DataType:
    if isinstance(text, list):
        return pa.list_(_parsed(text[0]))
    if isinstance(text, dict):
        return pa.struct([(name, _parsed(kind)) for name, kind in text.items()])
    return _ALL_TYPES[text]


class TableLines(LineParser):
    """Makes records from lines that are rows of a table.

    Args:
        fields: Names and types of the columns to be read.
        record: `example`, `column:NAME` or `line`.
        skip_nulls: Whether a row is left out if a feature, or the column, is null.

    Raises:
        InputError: The columns do not fit such records.
    """

    def __init__(
        self, fields: pa.Schema, record: str = "line", *, skip_nulls: bool = False
    ):
        self.fields, self._record = fields, record
        self.features = features_of(fields) if record == "example" else {}
        if column := column_of(record):
            check_column(fields, column)
        self._rows = RowRecords(record, self.features, skip_nulls=skip_nulls)

    @abc.abstractmethod
    def rows(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows of lines, and the line of each.

        Raises:
            RowError: The first line that is not such a row.
        """

    @abc.abstractmethod
    def texts(self, lines: Lines, kept: Positions) -> list[bytes]:
        """Returns some lines as records."""

    def cure(self, column: str, cure: str) -> str:
        """Returns the cure for a value of a column that no record can hold."""
        del column
        return cure

    def records(self, lines: Lines) -> Made:
        batch, kept = self.rows(lines)
        if self._record == "line":
            return Made(self.texts(lines, kept), kept)
        try:
            made, rows = self._rows.made(batch)
        except RowError as error:
            error.cure = self.cure(error.column, str(error.cure))
            raise error.of(row=int(kept[error.row])) from None
        return Made(made, kept[rows], len(kept) - len(rows))


class TableSource(LineSource):
    """Lines that are rows of a table; see `Source`."""

    _parser: TableLines

    def features(self) -> dict[str, Any] | None:
        return encode_features(self._parser.features) or None


def column_of(record: str) -> str:
    """Returns the column whose values are the records, "" for other records."""
    return record.partition(":")[2]
