"""The rows of tables, and their values: of Parquet, JSON lines, or another dataset."""

from __future__ import annotations

import contextlib
import io
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import (
    InputError,
    NotADatasetError,
    some_of,
)
from gristmill.dataset.base.example import BYTES, FLOATS, INTS
from gristmill.dataset.columns.column_file import ColumnType, lost_number
from gristmill.dataset.columns.expression import compared
from gristmill.dataset.formats.parquet_file import ParquetFile
from gristmill.dataset.formats.streams import InflatedStream
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader import Dataset
from gristmill.loader import open as open_dataset
from gristmill.loader.base.indices import AnyArray, BoolArray
from gristmill.loader.decode.examples import RaggedFeature
from gristmill.loader.decode.scan import scan_examples
from gristmill.transforms.sources.find_inputs import match_inputs
from gristmill.transforms.sources.input_formats import Look, look_at
from gristmill.transforms.sources.lines.strict_json import parsed_line

if TYPE_CHECKING:
    import pyarrow as pa


_INT64 = range(-(1 << 63), 1 << 63)
_LEAVE_OUT = "write it with values of one of these types, or leave it out by --columns"
_EXPECTED = "numbers, true or false, texts, or arrays of numbers of one length"


class TypedValues(NamedTuple):
    """Some values of a column.

    Attributes:
        kind: Their type; None if all are missing and the type is unknown.
        values: [n, *shape], texts as objects; undefined where missing.
        missing: bool [n], whether each is missing.
    """

    kind: ColumnType | None
    values: AnyArray
    missing: BoolArray


def of_arrow(array: pa.Array, *, column: str, where: str) -> TypedValues:
    """Returns the values of an Arrow array.

    Raises:
        InputError: A column cannot hold them.
    """
    import pyarrow as pa

    def refused(got: object) -> InputError:
        return InputError(
            f"a column cannot hold the values of {column!r}",
            where=where,
            expected=_EXPECTED,
            got=got,
            cure=_LEAVE_OUT,
        )

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    missing = np.asarray(array.is_null())
    if pa.types.is_null(kind):
        return TypedValues(None, np.empty(len(array), object), missing)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TypedValues(ColumnType("text"), _objects(array.to_pylist()), missing)
    shape: list[int] = []
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.asarray(array.value_lengths().fill_null(-1))
        sizes = np.unique(lengths[lengths >= 0])
        if len(sizes) > 1:
            raise refused(f"lists of {sizes[0]:,} and {sizes[1]:,} values")
        shape.append(int(sizes[0]) if len(sizes) else 0)
        array, kind = array.flatten(), kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        array, kind = array.flatten(), kind.value_type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
    ):
        raise refused(array.type)
    there = int((~missing).sum())
    if shape and not there:
        return TypedValues(None, np.empty(len(missing), object), missing)
    if shape and (array.null_count or len(array) != there * math.prod(shape)):
        raise refused("a null in an array")
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(kind) else 0)
    found = np.asarray(array.to_numpy(zero_copy_only=False))
    values = found
    if shape:
        values = np.zeros((len(missing), *shape), found.dtype)
        values[~missing] = found.reshape(there, *shape)
    return TypedValues(ColumnType(found.dtype.name, tuple(shape)), values, missing)


def of_json(
    values: Sequence[Any], *, column: str, where: Callable[[int], str]
) -> TypedValues:
    """Returns the values of a field of JSON objects.

    Whole numbers become floats if others are fractions, or exceed 64 bits.

    Args:
        values: The values of all rows; None where there is none.
        column: The name of the field.
        where: Returns the place of a row.

    Raises:
        InputError: A column cannot hold them, or would round a number.
    """
    import pyarrow as pa

    kinds = [_leaf_kinds(value) for value in values]
    first: dict[type, int] = {}
    for row, kind in enumerate(kinds):
        for each in kind:
            first.setdefault(each, row)
    if first.keys() <= {int, float}:
        if float in first or not all(map(_has_64_bits, values)):
            _check_numbers(values, column, where)
            values = [_as_floats(value) for value in values]
    elif len(first) > 1:
        one, other = list(first)[:2]
        row = first[other]
        raise InputError(
            f"the column {column!r} has values of several types",
            where=where(row),
            expected=f"{one.__name__}, as {values[first[one]]!r:.60} in "
            f"{where(first[one])}",
            got=f"{values[row]!r:.60}",
            cure=_LEAVE_OUT,
        )
    try:
        array = pa.array(values)
    except pa.ArrowException as e:
        raise InputError(
            f"a column cannot hold the values of {column!r}",
            where=where(0),
            expected=_EXPECTED,
            got=str(e).splitlines()[0],
            cure=_LEAVE_OUT,
        ) from e
    return of_arrow(array, column=column, where=where(0))


def _leaf_kinds(value: Any) -> set[type]:
    if isinstance(value, list):
        return set().union(*map(_leaf_kinds, value))
    return set() if value is None else {type(value)}


def _has_64_bits(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_has_64_bits, value))
    return value is None or value in _INT64


def _as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_as_floats, value)]
    return None if value is None else float(value)


def _check_numbers(
    values: Sequence[Any], column: str, where: Callable[[int], str]
) -> None:
    for row, value in enumerate(values):
        lost = lost_number(value)
        if lost is not None:
            raise InputError(
                f"a whole number of the column {column!r} would be rounded",
                where=where(row),
                expected="whole numbers that a float64 holds, as the column has "
                "fractions, or numbers of 2^63 and more",
                got=lost,
                cure="write the column as texts, or leave it out by --columns",
            )


def _objects(values: Sequence[Any]) -> AnyArray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def filled(kind: ColumnType, value: Any, *, column: str) -> Any:
    """Returns the value for records without one, in the column's numpy type.

    Raises:
        InputError: It is not of the column's type.
    """
    found: Any = None
    if kind.is_text:
        found = value if isinstance(value, str) else None
    elif isinstance(value, bool) == (kind.dtype == "bool"):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            given = np.asarray(value)
            with np.errstate(over="ignore"):
                cast = given.astype(kind.dtype)
            # Fractions are rounded; whole numbers are not, and none becomes infinite.
            fractions = cast.dtype.kind == given.dtype.kind == "f"
            fractions &= bool((np.isinf(cast) == np.isinf(given)).all())
            if fractions or compared(operator.eq, cast, given).all():
                found = np.broadcast_to(cast, kind.shape)
    if found is not None:
        return found
    raise InputError(
        f"the value for missing ones is not of the type of {column!r}",
        expected=str(kind),
        got=f"{value!r:.100}",
        cure="give one of this type with --missing, or a value by column: "
        '--missing \'{"score": NaN, "language": ""}\'',
    )


BLOCK_RECORDS = 1024
_MARK = b"\xef\xbb\xbf"  # The byte order mark.
_KINDS = {BYTES: ColumnType("text"), FLOATS: ColumnType("float32")}
_KINDS[INTS] = ColumnType("int64")


class Rows(NamedTuple):
    """Some rows of a table.

    Attributes:
        where: The file, and the place of the first row.
        columns: The values of each column.
    """

    where: str
    columns: Mapping[str, TypedValues]


class Tables(NamedTuple):
    """Tables with the same columns, in order.

    Attributes:
        files: The files; none for a dataset.
        looks: The looks at their first bytes.
        dataset: The dataset whose records are rows, or None.
    """

    files: Sequence[FileInfo]
    looks: Sequence[Look]
    dataset: Dataset | None = None

    @classmethod
    def find(cls, inputs: Sequence[str]) -> Tables:
        """Finds files by patterns, or opens a dataset.

        Raises:
            InputError: There are none, or they have another format.
        """
        if len(inputs) == 1 and _is_dataset(inputs[0]):
            return cls((), (), open_dataset(inputs[0]))
        infos = [info for pattern in inputs for info in match_inputs(pattern)]
        files = [*{info.path: info for info in infos}.values()]
        looks = look_at(files)
        others = [
            (file.path, look)
            for file, look in zip(files, looks, strict=True)
            if look.content not in ("Parquet", "JSON lines") and not look.is_blank
        ]
        if others:
            raise InputError(
                "not a table that can be joined",
                where=some_of([path for path, _ in others]),
                expected="Parquet, JSON lines or a dataset of gristmill",
                got=others[0][1].content or "an unknown format",
                cure="write it as Parquet, or convert it with `gristmill convert` and "
                "give the dataset",
            )
        return cls(files, looks)

    @property
    def identity(self) -> list[list[Any]]:
        """Values of JSON that identify these tables."""
        if self.dataset is not None:
            content = self.dataset.stored.content
            return [[self.dataset.path, content.records, content.order_digest]]
        return [[info.path, info.size_bytes, info.version] for info in self.files]

    def rows(self, columns: Sequence[str] | None) -> Iterator[Rows]:
        """Yields the rows of all files, some at a time.

        Args:
            columns: The columns to read; None for all.

        Raises:
            InputError: A column is missing, or cannot be read as one.
            CorruptRecordError: A file is damaged.
        """
        if self.dataset is not None:
            yield from _of_dataset(self.dataset, columns)
            return
        for file, look in zip(self.files, self.looks, strict=True):
            if look.is_blank:
                continue
            of = _of_parquet if look.content == "Parquet" else _of_json
            yield from of(file, look, columns)


def _is_dataset(path: str) -> bool:
    try:
        return read_manifest(path) is not None
    except (NotADatasetError, OSError):
        return False


def _chosen(
    there: Sequence[str], columns: Sequence[str] | None, where: str
) -> Sequence[str]:
    missing = [name for name in columns or () if name not in there]
    if missing:
        raise InputError(
            f"the table has no column {missing[0]!r}",
            where=where,
            expected=f"one of {some_of(there, 20)}",
            cure="correct the name",
        )
    return there if columns is None else columns


def _of_parquet(
    info: FileInfo, look: Look, columns: Sequence[str] | None
) -> Iterator[Rows]:
    del look
    with ParquetFile(info.path, info.size_bytes, info.version or None) as file:
        chosen = _chosen(file.schema.names, columns, info.path)
        for group in file.places.groups:
            row = group.first_row
            for batch in file.batches(group, chosen):
                where = f"{info.path}, row {row:,}"
                yield Rows(where, _columns_of(batch, chosen, where))
                row += batch.num_rows


def _of_json(
    info: FileInfo, look: Look, columns: Sequence[str] | None
) -> Iterator[Rows]:
    with storage_for(info.path).open(info.path, version=info.version or None) as file:
        data = file.read()
    if look.compression != "none":
        stream = InflatedStream(
            io.BytesIO(data), path=info.path, compression=look.compression
        )
        data = b"".join(iter(lambda: stream.read(1 << 20), b""))
    rows, lines = [], []
    for number, line in enumerate(data.removeprefix(_MARK).split(b"\n"), 1):
        if line.strip():
            rows.append(_object(line, f"{info.path}, line {number:,}"))
            lines.append(number)
    names = dict.fromkeys(name for row in rows for name in row)
    yield Rows(
        info.path,
        {
            name: of_json(
                [row.get(name) for row in rows],
                column=name,
                where=lambda row: f"{info.path}, line {lines[row]:,}",
            )
            for name in _chosen([*names], columns, info.path)
        },
    )


def _object(line: bytes, where: str) -> dict[str, Any]:
    cause: Exception | None = None
    try:
        found = parsed_line(line)
    except (ValueError, RecursionError) as e:
        cause, got = e, str(e)
    else:
        if isinstance(found, dict):
            return found
        got = f"{found!r:.60}"
    raise InputError(
        "line is no row of a table",
        where=where,
        expected="a JSON object",
        got=got,
        cure="write one object on each line",
    ) from cause


def _columns_of(
    batch: Any, chosen: Sequence[str], where: str
) -> dict[str, TypedValues]:
    return {
        name: of_arrow(batch.column(name), column=name, where=where) for name in chosen
    }


def _of_dataset(dataset: Dataset, columns: Sequence[str] | None) -> Iterator[Rows]:
    names = columns
    if names is None:
        names = [*(dataset.features or {})]
        if not names:
            raise InputError(
                "it is not known which features the dataset has",
                where=repr(dataset),
                cure="name those to attach with --columns",
            )
    for begin in range(0, len(dataset), BLOCK_RECORDS):
        records = dataset[begin : begin + BLOCK_RECORDS]
        where = f"{dataset.path}, record {begin:,}"
        yield Rows(where, features_of(records, names, where=where))


def features_of(
    records: Sequence[bytes], names: Sequence[str], *, where: str
) -> dict[str, TypedValues]:
    """Returns features of examples: texts, integers, floats, or arrays of these.

    Raises:
        InputError: Records have different numbers of values.
        DecodeError: A record is not a `tf.train.Example`.
    """
    scan = scan_examples(records)
    found = {}
    for name in names:
        kinds = scan.column(name.encode()).kinds
        there = [kind for kind in _KINDS if (kinds == kind).any()]
        if not there:
            nothing = np.empty(len(records), object)
            found[name] = TypedValues(None, nothing, np.ones(len(records), bool))
            continue
        kind = _KINDS[there[0]]
        dtype: Any = bytes if kind.is_text else np.dtype(kind.dtype)
        ragged = RaggedFeature(dtype, optional=True).array(name, scan)
        counts = np.diff(ragged.row_splits)
        missing = counts == 0
        sizes = np.unique(counts[~missing])
        if len(sizes) != 1 or (kind.is_text and sizes[0] != 1):
            raise InputError(
                f"records have several values of the feature {name!r}",
                where=where,
                expected="a single text, or as many numbers in each record",
                got=f"{some_of(sizes)} values",
                cure="choose another feature",
            )
        shape = () if sizes[0] == 1 else (int(sizes[0]),)
        kind = ColumnType(kind.dtype, shape)
        values = kind.empty(len(records))
        given = ragged.values
        if kind.is_text:
            given = [_text(value, name, where) for value in given.tolist()]
        values[~missing] = np.reshape(given, (-1, *shape)) if shape else given
        found[name] = TypedValues(kind, values, missing)
    return found


def _text(value: bytes, name: str, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise InputError(
            f"the feature {name!r} is not text",
            where=where,
            got=str(e),
            cure="choose another feature, or leave it out with --columns",
        ) from e
