"""The rows of a table as records: tf.train.Examples, JSON objects, or one column."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.dataset.base.errors import InputError, RowError, some_of
from gristmill.dataset.base.example import BYTES, FLOATS, INTS, ordered_names
from gristmill.dataset.base.places import Int64
from gristmill.dataset.base.varints import encode_varint, encode_varints
from gristmill.dataset.metadata.features import Features, Kind
from gristmill.transforms.tables.table_features import (
    DOUBLE,
    ZERO,
    Leaf,
    are_integers,
    are_lost,
    ends_of,
    holds,
    leaf_values,
    leaves_of,
    numbers_cure,
    numpy_of,
    row_of,
    rows_without_nulls,
    spec_of,
)

_FIELDS = {"bytes": BYTES, "float": FLOATS, "int64": INTS}


def length_headers(tag: bytes, sizes: Any) -> Any:
    """Returns the header of each field of a size: its tag, and the size."""
    return _looked_up(functools.partial(_length_header, tag), sizes)


def entry_headers(name: bytes, kind: Kind, *, single: bool, sizes: Any) -> Any:
    """Returns the bytes before the values of a feature, for each of their sizes.

    Args:
        name: Name of the feature.
        kind: Kind of the list that holds its values.
        single: Whether it is one value of bytes, instead of an encoded list.
        sizes: Number of bytes that follow, an array; null if there is no feature.
    """
    return _looked_up(functools.partial(_entry_header, name, kind, single), sizes)


def _looked_up(header: Callable[[int], bytes], sizes: Any) -> Any:
    found = sizes.dictionary_encode()
    headers = [header(size) for size in found.dictionary.to_pylist()]
    table = binary_array(b"".join(headers), ends_of(list(map(len, headers))))
    return pc.take(table, found.indices)


@functools.lru_cache(1 << 16)
def _length_header(tag: bytes, size: int) -> bytes:
    return tag + encode_varint(size)


@functools.lru_cache(1 << 16)
def _entry_header(name: bytes, kind: Kind, single: bool, size: int) -> bytes:
    # A list of numbers that is empty has no packed field; one of bytes has no fields.
    packed = single or (kind != "bytes" and size > 0)
    header = _length_header(b"\n", size) if packed else b""
    # From the inside: the list in its feature, in its entry, in the features.
    tag = bytes([_FIELDS[kind] << 3 | 2])
    header = _length_header(tag, len(header) + size) + header
    header = _length_header(b"\x12", len(header) + size) + header
    header = _length_header(b"\n", len(name)) + name + header
    return _length_header(b"\n", len(header) + size) + header


BINARY = pa.large_binary()  # Its offsets exceed 2 GiB.
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())


def payloads(
    values: Any, counts: Any, kind: Kind, name: str, *, rounds: bool = False
) -> Any:
    """Returns the encoded feature of each row: an array of large binary.

    A single value of bytes is itself; otherwise values are a list: packed numbers, or
    bytes with their lengths. Rows without the feature are null.

    Args:
        values: The values of all rows, an array.
        counts: Number of values in each row, null for a missing feature; None for one
            per row.
        kind: Kind of the list that holds them.
        name: Name of the feature, for messages.
        rounds: Whether whole numbers may be rounded to 32 bits as well.

    Raises:
        RowError: A value cannot be kept.
    """
    if kind == "bytes" and counts is None:
        _check_text(values, None, name)
        return _bytes(values)
    given = values if counts is None else counts
    present = numpy_of(pc.is_valid(given)) if given.null_count else None
    if counts is None:
        values = values.drop_null()
        ends = np.arange(len(given) + 1) if present is None else ends_of(present)
    else:
        ends = ends_of(numpy_of(pc.coalesce(counts, ZERO)))
        if values.null_count:
            item = int(np.argmax(numpy_of(pc.is_null(values))))
            row = row_of(ends, item)
            raise RowError(
                f"a list in column {name!r} has an item that is null, which no "
                "tf.train.Example holds",
                got=f"null as item {item - int(ends[row]):,} of the list",
                cure="leave out the column with --columns, or drop such items where "
                "the table is made",
                row=row,
                column=name,
            )
    if kind == "int64":
        data, bounds = _packed_ints(values, ends, name)
    elif kind == "float":
        data, bounds = _packed_floats(values, ends, name, rounds=rounds)
    else:
        _check_text(values, ends, name)
        data, bounds = _items(values)
    return binary_array(data, bounds[ends], present)


def binary_array(
    data: Any, offsets: Int64, present: npt.NDArray[np.bool_] | None = None
) -> Any:
    """Returns an array of large binary over bytes and offsets, without a copy.

    Args:
        data: Any buffer.
        offsets: Start and end of each item: int64 [items + 1].
        present: Whether each item is not null; None if all are.
    """
    valid = None
    if present is not None:
        valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    places = pa.py_buffer(np.ascontiguousarray(offsets, np.int64))
    buffers = [valid, places, pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(BINARY, len(offsets) - 1, buffers)


def _empty() -> Any:
    """Returns the scalar of no bytes."""
    return binary_array(b"", np.zeros(2, np.int64))[0]


def _too_large(of: str, most: object, got: object, *, row: int, name: str) -> RowError:
    return RowError(
        f"column {name!r} has a number that is too large for a tf.train.Example",
        expected=f"at most {most}, as {of} of its lists holds",
        got=got,
        cure="leave out the column with --columns, or keep it as text where the "
        "table is made",
        row=row,
        column=name,
    )


def _check_text(values: Any, ends: Int64 | None, name: str) -> None:
    """Checks that texts are UTF-8, which readers of files do not."""
    if values.type not in _TEXTS:
        return
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        for item, value in enumerate(_bytes(values).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError as e:
                raise RowError(
                    f"column {name!r} has a text that is not UTF-8",
                    expected="UTF-8, as the type of the column says",
                    got=e,
                    cure="correct the table where it is made, or leave such rows out "
                    "with --on-corrupt skip",
                    row=item if ends is None else row_of(ends, item),
                    column=name,
                ) from e
        raise


def _bytes(values: Any) -> Any:
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    return values.cast(pa.large_binary())


def _items(values: Any) -> tuple[Any, Int64]:
    """Returns bytes with the length of each before it, and their bounds."""
    values = _bytes(values)
    headers = length_headers(b"\n", pc.binary_length(values))
    joined = pc.binary_join_element_wise(headers, values, _empty())
    _, places, data = joined.buffers()
    bounds = np.frombuffer(places, np.int64, len(joined) + 1, 8 * joined.offset)
    return data if data is not None else b"", bounds


def _packed_floats(
    values: Any, ends: Int64, name: str, *, rounds: bool
) -> tuple[Any, Int64]:
    given = numpy_of(values)
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(given, "<f4")
    if given.dtype.itemsize > floats.dtype.itemsize:
        beyond = np.isinf(floats) & ~np.isinf(given)
        if beyond.any():
            item = int(np.argmax(beyond))
            raise _too_large(
                "a float32",
                float(np.finfo(np.float32).max),
                given[item],
                row=row_of(ends, item),
                name=name,
            )
        if not rounds and (lost := are_lost(given)).any():
            item = int(np.argmax(lost))
            raise RowError(
                f"column {name!r} has a whole number that a float32 does not hold",
                expected="whole numbers that it holds, such as those up to 2**24",
                got=f"{int(given[item])}, which would be {int(floats[item])}",
                cure=numbers_cure(name),
                row=row_of(ends, item),
                column=name,
            )
    return floats, np.arange(len(floats) + 1) * floats.itemsize


def _packed_ints(values: Any, ends: Int64, name: str) -> tuple[Any, Int64]:
    if pa.types.is_floating(values.type):
        ints = _whole(values, ends, name)
    else:
        ints = _int64s(values)
    if pa.types.is_uint64(values.type) and len(ints) and ints.min() < 0:
        item = int(np.argmax(ints < 0))
        most = np.iinfo(np.int64).max
        row = row_of(ends, item)
        raise _too_large("an int64", most, values[item], row=row, name=name)
    data, sizes = encode_varints(ints)
    return data, ends_of(sizes)


def _whole(values: Any, ends: Int64, name: str) -> Int64:
    """Returns floats that are integers."""
    given = numpy_of(values).astype(np.float64)
    wrong = ~are_integers(given)
    if wrong.any():
        item = int(np.argmax(wrong))
        raise RowError(
            f"column {name!r} has a number that is not an integer, but is kept as one",
            expected="integers of 64 bits alone",
            got=given[item],
            cure=f"round all numbers to 32 bits, with --columns '*,{name}:float'",
            row=row_of(ends, item),
            column=name,
        )
    ints: Int64 = given.astype(np.int64)
    return ints


def _int64s(values: Any) -> Int64:
    """Returns integers, booleans and times as int64, unsigned ones by their bits."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif not pa.types.is_integer(kind):
        values = values.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    ints: Int64 = numpy_of(values).astype(np.int64, copy=False)
    return ints


# Rows that are encoded at once: enough for C++ code to do the work, few enough for the
# memory and the caches.
_ROWS = 8192
_BYTES = 16 << 20

_MAX_RECORD_BYTES = (1 << 31) - 1  # Limit of any protocol buffers message.


def encode_rows(batch: pa.RecordBatch, features: Features) -> list[bytes]:
    """Returns each row as a serialized `tf.train.Example`.

    A row lacks a feature where its value, its list, or a struct around it is null. A
    list without items is a feature without values.

    Args:
        batch: The rows. Columns that are not features are left out.
        features: The features of the table.

    Raises:
        RowError: A row has a value that no `tf.train.Example` holds, or lacks a
            required one; `row` is its place in the batch.
    """
    leaves = _leaves(batch.schema, features)
    rows = max(1, min(_ROWS, _BYTES * len(batch) // max(1, _size_bytes(batch))))
    records: list[bytes] = []
    for begin in range(0, len(batch), rows):
        try:
            records += _encoded(batch.slice(begin, rows), leaves, features)
        except RowError as e:
            raise e.of(row=begin + e.row) from None
    return records


def _size_bytes(batch: pa.RecordBatch) -> int:
    try:
        size: int = batch.nbytes
    except pa.ArrowTypeError:  # Views of text, before pyarrow 22.
        size = batch.get_total_buffer_size()
    return size


def _leaves(schema: pa.Schema, features: Features) -> list[Leaf]:
    """Returns the places of the features in a batch, in the order of their bytes."""
    leaves = {}
    for leaf in leaves_of(schema, lambda name: any(holds(name, f) for f in features)):
        spec = features.get(leaf.name)
        if spec is not None:
            leaves[leaf.name] = dataclasses.replace(leaf, shape=spec.shape)
    return [leaves[name] for _, name in ordered_names(leaves)]


def _encoded(
    batch: pa.RecordBatch, leaves: Sequence[Leaf], features: Features
) -> list[bytes]:
    """Returns the records of rows that are few enough to be encoded at once."""
    pieces: list[Any] = []
    sizes = np.zeros(len(batch), np.int64)
    for leaf in leaves:
        values, counts = leaf_values(batch, leaf)
        spec = features[leaf.name]
        payload = payloads(
            *(values, counts, spec.kind, leaf.name), rounds=spec.type != DOUBLE
        )
        if payload.null_count and not spec.optional:
            raise _missing(leaf.name, payload)
        header = entry_headers(
            leaf.name.encode(),
            spec.kind,
            single=counts is None and spec.kind == "bytes",
            sizes=pc.binary_length(payload),
        )
        pieces += [header, payload]
        for piece in (header, payload):
            length = pc.coalesce(pc.binary_length(piece), ZERO)
            sizes += numpy_of(length)
    largest = int(sizes.max(initial=0))
    if largest > _MAX_RECORD_BYTES:
        raise RowError(
            "a row is too large for a tf.train.Example",
            expected=f"at most {_MAX_RECORD_BYTES:,} bytes",
            got=f"{largest:,}",
            cure="leave out its largest column with --columns",
            row=int(np.argmax(sizes)),
        )
    numbers = pa.Array.from_buffers(pa.int64(), len(sizes), [None, pa.py_buffer(sizes)])
    joined = pc.binary_join_element_wise(
        length_headers(b"\n", numbers),
        *pieces,
        _empty(),  # Between the pieces.
        null_handling="replace",
        null_replacement=b"",
    )
    records: list[bytes] = joined.to_pylist()
    return records


def _missing(name: str, payload: Any) -> RowError:
    return RowError(
        f"column {name!r} has no value in a row, and is described as one that always "
        "has",
        expected="a value, or a list that may be empty",
        got="null",
        cure="correct the description where the table is made, or leave out the column "
        "with --columns",
        row=pc.index(pc.is_null(payload), True).as_py(),
        column=name,
    )


def json_rows(batch: pa.RecordBatch) -> list[bytes]:
    """Returns each row as a JSON object in UTF-8, its fields in the order of columns.

    Structs and maps are objects. Null fields are omitted, since tables have every field
    of a struct in each row.

    Raises:
        RowError: A row has a value that JSON does not have; `row` is its place in the
            batch.
    """
    types = [field.type for field in batch.schema]
    columns = [column.to_pylist() for column in batch.columns]
    records = []
    for row, values in enumerate(zip(*columns, strict=True)):
        named = zip(batch.schema.names, values, types, strict=True)
        try:
            found = {n: _plain(v, kind) for n, v, kind in named if v is not None}
            text = json.dumps(found, ensure_ascii=False, allow_nan=False)
            records.append(text.encode())
        except (TypeError, ValueError) as error:
            raise RowError(
                "a row has a value that JSON does not have",
                expected="texts, finite numbers, true or false, lists and structs",
                got=str(error),
                cure="take other columns, or write this one as text",
                row=row,
            ) from error
    return records


def _plain(value: Any, kind: Any) -> Any:
    """Returns a value without null fields, and with objects for maps."""
    if value is None:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return {
            field.name: _plain(value[field.name], field.type)
            for field in kind
            if value[field.name] is not None
        }
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    return value


class RowRecords:
    """Makes records of the rows of a table.

    Args:
        record: `example`, `json` or `column:NAME`.
        features: The features of examples.
        skip_nulls: Whether a row is left out if a feature, or the column, is null.
    """

    def __init__(self, record: str, features: Features, *, skip_nulls: bool):
        kind, _, column = record.partition(":")
        self._make: Callable[[pa.RecordBatch], list[bytes]] = json_rows
        checked: Collection[str] = ()
        if kind == "example":
            checked, self._make = features, lambda batch: encode_rows(batch, features)
        elif kind == "column":
            checked, self._make = {column}, lambda batch: one_column(batch, column)
        self._checked = checked if skip_nulls else ()

    def made(self, batch: pa.RecordBatch) -> tuple[list[bytes], Int64]:
        """Returns the records, and the row of each: int64 [records].

        Raises:
            RowError: A row cannot become a record; `row` is its place in the batch.
        """
        kept = np.arange(batch.num_rows)
        if self._checked:
            kept = rows_without_nulls(batch, self._checked.__contains__)
            batch = batch.take(kept) if len(kept) < batch.num_rows else batch
        try:
            return self._make(batch), kept
        except RowError as error:
            raise error.of(row=int(kept[error.row])) from None


NULLS_CURE = "leave out rows without a value, with --nulls skip"


def null_error(name: str, *, nulls: int, rows: int, where: str) -> InputError:
    """Returns the error for a column of records that is null in some rows."""
    return InputError(
        f"column {name!r} is null in some rows, which cannot become records",
        where=where,
        expected="a value in each row, which may be empty",
        got=f"null in {nulls:,} of {rows:,} rows",
        cure=NULLS_CURE,
    )


def check_column(schema: pa.Schema, name: str) -> None:
    """Checks that the values of a column can be records.

    Args:
        schema: The columns.
        name: The column, or a field of one by the name that it has as a feature: the
            bytes of images have the name of their column.

    Raises:
        InputError: There is no such column, or a row has another value than one of
            bytes or text.
    """
    _leaf(schema, name)


def one_column(batch: pa.RecordBatch, name: str) -> list[bytes]:
    """Returns the bytes, or the text in UTF-8, that a column has in each row.

    Raises:
        InputError: As `check_column`.
        RowError: A row has no value; `row` is its place in the batch.
    """
    values, _ = leaf_values(batch, _leaf(batch.schema, name))
    values = payloads(values, None, "bytes", name)
    if values.null_count:
        raise RowError(
            f"column {name!r} has no value in a row, so there is no record",
            expected="bytes or text, which may be empty",
            got="null",
            cure=NULLS_CURE,
            row=pc.index(pc.is_null(values), True).as_py(),
            column=name,
        )
    records: list[bytes] = values.to_pylist()
    return records


NO_RECORDS_CURE = (
    "choose another column; or leave out --record to make a tf.train.Example of all "
    "columns, or --tokenizer of `gristmill pack` if the column holds tokens"
)


def _leaf(schema: pa.Schema, name: str) -> Leaf:
    leaves = leaves_of(schema, lambda column: holds(column, name))
    found = [leaf for leaf in leaves if leaf.name == name]
    # A column without values, or of several fields, has no leaf of its name.
    if len(found) != 1 and (found or name not in schema.names):
        raise InputError(
            "two columns have this name" if found else "the table has no such column",
            expected=f"one of {some_of(schema.names, 20)}",
            got=name,
            cure="give the name of a column with one value of bytes or text in each "
            "row",
        )
    column = found[0].path[0] if found else schema.names.index(name)
    got: Any = schema.field(column)
    spec = spec_of(found[0], got.name) if found else None
    if spec is None or spec.kind != "bytes" or spec.shape:
        raise InputError(
            f"the values of column {name!r} cannot be records",
            expected="one value of bytes or text in each row",
            got=got.type,
            cure=NO_RECORDS_CURE,
        )
    return found[0]
