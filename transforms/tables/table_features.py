"""The columns of a table: their nested values, and the features that they become."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from gristmill.dataset.base.errors import InputError, RowError, some_of
from gristmill.dataset.base.places import Int64
from gristmill.dataset.metadata.features import Features, FeatureSpec, Kind

Bools = npt.NDArray[np.bool_]

CLASS_LABEL = "class_label"
_KEY = b"huggingface"
_LISTS = ("Sequence", "List", "LargeList")
_ARRAYS = ("Array2D", "Array3D", "Array4D", "Array5D")
_FILES = {"Image": "image", "Audio": "audio", "Video": "video", "Pdf": "pdf"}


def described_columns(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """Returns the description of each column by its name; empty if there is none."""
    try:
        document = json.loads((metadata or {}).get(_KEY, b"{}"))
        features = document["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def of_items(described: Any) -> Any:
    """Returns the description of the items of a list."""
    if isinstance(described, list):
        return described[0] if described else None
    if sizes := _array_shape(described):
        return {**described, "shape": sizes[1:]}
    return described.get("feature") if _kind(described) in _LISTS else None


def of_field(described: Any, name: str) -> Any:
    """Returns the description of a field of a struct."""
    if _kind(described) in _LISTS:  # A list of structs is kept as a struct of lists.
        return {**described, "feature": of_field(described.get("feature"), name)}
    return described.get(name) if isinstance(described, dict) else None


def length_of(described: Any) -> int | None:
    """Returns the length of every list, None if it varies."""
    if sizes := _array_shape(described):
        length = sizes[0]
    else:
        length = described.get("length") if _kind(described) in _LISTS else None
    return length if type(length) is int and length >= 0 else None


def file_type(described: Any) -> str:
    """Returns the kind of files that the values are, such as `image`, or ""."""
    return _FILES.get(_kind(described), "")


def class_names(described: Any) -> tuple[str, ...] | None:
    """Returns the names of classes, None if the values do not number classes."""
    if _kind(described) != "ClassLabel":
        return None
    names = described.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _array_shape(described: Any) -> list[Any]:
    """Returns the shape of an array of several dimensions, else nothing."""
    if _kind(described) not in _ARRAYS:
        return []
    shape = described.get("shape")
    return list(shape) if isinstance(shape, list | tuple) else []


def _kind(described: Any) -> str:
    kind = described.get("_type") if isinstance(described, dict) else None
    return kind if isinstance(kind, str) else ""


def holds(column: str, feature: str) -> bool:
    """Returns whether a feature comes from a column or a field of it."""
    return feature == column or feature.startswith(f"{column}.")


ITEMS = -1
"""The step of a path from a list to its items."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Values of a column, or of a field somewhere within it.

    Attributes:
        name: Name of the feature.
        path: The way to it: number of the column, then of each field, or `ITEMS`.
        type: Type of the values.
        shape: Shape of the values of a row.
        nullable: Whether rows may have none.
        described: Hugging Face's metadata about it.
    """

    name: str
    path: tuple[int, ...]
    type: Any
    shape: tuple[int | None, ...]
    nullable: bool
    described: Any


def leaves_of(
    schema: pa.Schema, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[Leaf]:
    """Yields the leaves of columns, in the order of the table.

    A column or field that is always null has no leaf.

    Raises:
        InputError: A column is nested in a way that no `tf.train.Example` holds.
    """
    described = described_columns(schema.metadata)
    for number, field in enumerate(schema):
        if not wanted(field.name):
            continue
        yield from _below(
            Leaf(
                name=field.name,
                path=(number,),
                type=field.type,
                shape=(),
                nullable=field.nullable,
                described=described.get(field.name),
            ),
            column=field,
        )


def _below(at: Leaf, *, column: pa.Field) -> Iterator[Leaf]:
    kind = plain_type(at.type)
    if pa.types.is_null(kind):
        return
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        # The package datasets stores files so: the path only names the origin.
        is_file = sorted(field.name for field in fields) == ["bytes", "path"]
        for number, field in enumerate(fields):
            binary = pa.types.is_binary(field.type) or pa.types.is_large_binary(
                field.type
            )
            itself = is_file and field.name == "bytes" and binary
            described = of_field(at.described, field.name)
            below = dataclasses.replace(
                at,
                name=at.name if itself else f"{at.name}.{field.name}",
                path=(*at.path, number),
                type=field.type,
                nullable=at.nullable or field.nullable,
                described=at.described if itself else described,
            )
            yield from _below(below, column=column)
    elif _is_list(kind):
        size: int | None = length_of(at.described)
        if pa.types.is_fixed_size_list(kind):
            size = kind.list_size
        if at.shape and size is None:
            what = "lists of lists whose length varies"
            raise _refused(at.name, column.name, column.type, what)
        below = dataclasses.replace(
            at,
            path=(*at.path, ITEMS),
            type=kind.value_type,
            shape=(*at.shape, size),
            described=of_items(at.described),
        )
        yield from _below(below, column=column)
    elif pa.types.is_nested(kind):
        what = "a map" if pa.types.is_map(kind) else "a union"
        raise _refused(at.name, column.name, column.type, what)
    else:
        yield dataclasses.replace(at, type=kind)


def _is_list(kind: pa.DataType) -> bool:
    tests = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    return any(test(kind) for test in tests)


def _refused(name: str, column: str, got: object, what: str) -> InputError:
    """Returns the error for a type that no `tf.train.Example` holds."""
    return InputError(
        f"column {name!r} cannot become a feature: no tf.train.Example holds {what}",
        expected="numbers, texts, bytes, or structs and lists of these",
        got=got,
        cure=f"leave out {column!r} by naming the other columns with --columns, or "
        "make each record of one column with --record column:NAME",
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values, however they are encoded."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def plain(array: Any) -> Any:
    """Returns an array with plain values, however they were encoded."""
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = _decoded(array)
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array


def _decoded(array: Any) -> Any:
    values = array.dictionary
    # A few can have more than 2 GiB in total.
    if values.type in (pa.string(), pa.string_view()):
        values = values.cast(pa.large_string())
    elif values.type in (pa.binary(), pa.binary_view()):
        values = values.cast(pa.large_binary())
    return values.take(array.indices)


def leaf_values(batch: pa.RecordBatch, leaf: Leaf) -> tuple[Any, Any]:
    """Returns the values of a leaf.

    Returns:
        An array of all values, and one of the number in each row, null for rows without
        a list. If the column is not a list, the latter is None: there is a value for
        each row.

    Raises:
        RowError: A list is not as long as the shape says, or a list in a list is null.
    """
    array, counts = plain(batch.column(leaf.path[0])), None
    sizes = iter(leaf.shape)
    for step in leaf.path[1:]:
        if step == ITEMS:
            lengths, size = pc.list_value_length(array), next(sizes)
            if size is not None:
                _check_lengths(lengths, counts, size, leaf.name)
            counts = lengths if counts is None else pc.multiply(counts, size)
            array = array.flatten()
        else:
            array = array.flatten()[step]
        array = plain(array)
    return array, counts


def _check_lengths(lengths: Any, counts: Any, size: int, name: str) -> None:
    """Checks that lists have the fixed length.

    Args:
        lengths: Length of each list, null if there is none.
        counts: Number of lists in each row; None for one a row.
        size: The required length.
        name: Name of the feature.
    """
    wrong = pc.fill_null(pc.not_equal(lengths, size), counts is not None)
    row = at = pc.index(wrong, True).as_py()
    if at < 0:
        return
    if counts is not None:
        row = row_of(ends_of(pc.coalesce(counts, ZERO)), at)
    got = lengths[at].as_py()
    raise RowError(
        f"a list in column {name!r} has another number of items than all others",
        expected=f"{size:,} items, as the columns are described",
        got="null" if got is None else f"{got:,} items",
        cure="correct the description where the table is made, or leave out the "
        "column with --columns",
        row=row,
        column=name,
    )


# `pa.scalar` and `pa.array` import pandas, where that is installed.
ZERO = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])[0]


def numpy_of(values: Any) -> npt.NDArray[Any]:
    """Returns an array without nulls as one of numpy; so does `to_numpy`, by pandas."""
    if pa.types.is_boolean(values.type):
        return np.from_dlpack(values.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(values)


def ends_of(counts: Any) -> Int64:
    """Returns the end of the items of each row, after a zero: int64 [rows + 1]."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def row_of(ends: Int64, item: int) -> int:
    """Returns the row of an item."""
    return int(np.searchsorted(ends, item, side="right")) - 1


def rows_without_nulls(batch: pa.RecordBatch, wanted: Callable[[str], bool]) -> Int64:
    """Returns the rows without a null, also in lists, in the features to check."""
    kept = np.ones(len(batch), np.bool_)
    for leaf in leaves_of(batch.schema):
        if not wanted(leaf.name):
            continue
        values, counts = leaf_values(batch, leaf)
        if counts is None:
            kept &= _valid(values)
            continue
        kept &= _valid(counts)
        if values.null_count:
            ends = ends_of(numpy_of(pc.coalesce(counts, ZERO)))
            before = np.concatenate([[0], np.cumsum(~_valid(values))])
            kept &= np.diff(before[ends]) == 0
    for column in batch.schema:  # It has no leaf, and no value.
        if pa.types.is_null(column.type) and wanted(column.name):
            kept[:] = False
    return np.flatnonzero(kept)


def _valid(values: Any) -> Bools:
    return numpy_of(pc.is_valid(values))


INT64 = range(-(1 << 63), 1 << 63)
NUMBER = re.compile(r"(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", re.ASCII)
"""A number as JSON writes it."""

_MOST_DIGITS = 64  # Digits of a text, with those that its exponent adds.


def whole_number(text: str) -> int | None:
    """Returns the 64-bit integer that a JSON or CSV text denotes, or None.

    >>> [whole_number(text) for text in ("7", "16777217.0", "1.5e1", "1.5", "07")]
    [7, 16777217, 15, None, None]
    """
    match = NUMBER.fullmatch(text)
    if match is None or len(text) > _MOST_DIGITS:
        return None
    sign, digits, fraction, exponent = match.groups(default="")
    shift = int(exponent or 0) - len(fraction)
    number, rest = int(digits + fraction), 0
    if number and abs(shift) > _MOST_DIGITS:
        return None
    if number:
        scaled = 10 ** abs(shift)
        number, rest = (number * scaled, 0) if shift >= 0 else divmod(number, scaled)
    if rest or (sign and not number):  # Integers cannot have the sign of -0.0.
        return None
    number = -number if sign else number
    return number if number in INT64 else None


def is_lost(number: int) -> bool:
    """Returns whether a float32 changes a 64-bit integer."""
    return abs(number) > 1 << 24 and int(np.float32(number)) != number


def are_lost(values: npt.NDArray[Any]) -> Bools:
    """Returns `is_lost` of each of some floats: only whole 64-bit ones count."""
    with np.errstate(over="ignore"):
        others = values.astype(np.float32) != values
    lost: Bools = others & (np.abs(values) < INT64.stop) & (np.trunc(values) == values)
    return lost


def are_integers(values: npt.NDArray[Any]) -> Bools:
    """Returns whether floats are 64-bit integers."""
    found: Bools = (np.trunc(values) == values) & (
        (values >= INT64.start) & (values < INT64.stop)
    )
    return found


class NumbersSeen:
    """The evidence of a sample which columns of numbers are kept as integers."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[object, str]] = {}
        self._fractions: dict[str, tuple[object, str]] = {}

    def add(
        self,
        name: str,
        lost: Iterable[object],
        fractions: Iterable[object],
        where: str,
    ) -> None:
        """Adds numbers of a column; the first of each kind is remembered.

        Args:
            name: The column.
            lost: Whole numbers that a float32 cannot hold.
            fractions: Numbers that are not 64-bit integers.
            where: The files or the line that they are from.
        """
        for known, numbers in ((self._lost, lost), (self._fractions, fractions)):
            if name not in known:
                known.update(
                    (name, (one, where)) for one in itertools.islice(numbers, 1)
                )

    def integers(self) -> set[str]:
        """Returns the columns of whole numbers of which some must be kept as integers.

        Raises:
            InputError: Some of a column have to be, and others are not whole.
        """
        if mixed := sorted(self._lost.keys() & self._fractions.keys()):
            name = mixed[0]
            (lost, *places), (fraction, place) = self._lost[name], self._fractions[name]
            raise InputError(
                f"column {name!r} has whole numbers that a float32 does not hold, and "
                "fractions",
                where="; ".join(dict.fromkeys([*places, place])),
                expected="whole numbers alone, or such as a float32 holds",
                got=f"{lost} and {fraction}",
                cure=f"round all to 32 bits, with --columns '*,{name}:float', or leave "
                "the column out",
            )
        return {*self._lost}


def numbers_cure(name: str) -> str:
    """Returns the cure for a column of floats with whole numbers."""
    return (
        f"give its type: --columns '*,{name}:int' keeps whole numbers if all are, "
        f"--columns '*,{name}:float' rounds all to 32 bits"
    )


# The features for types: tests, the kind of list, the dtype of the values (the type
# itself, if that is numpy's name), and the common name of equivalent types.
_Rule = tuple[tuple[Callable[[Any], bool], ...], Kind, str, str]
_TEXTS = types.is_string, types.is_large_string, types.is_string_view
_BINARIES = types.is_binary, types.is_large_binary, types.is_binary_view
_LONG_TIMES = types.is_date64, types.is_time64, types.is_timestamp, types.is_duration
_RULES: tuple[_Rule, ...] = (
    ((types.is_boolean,), "int64", "bool", ""),
    ((types.is_integer,), "int64", "", ""),
    ((types.is_float16,), "float", "float16", ""),
    ((types.is_floating,), "float", "float32", ""),
    (_TEXTS, "bytes", "bytes", "string"),
    (_BINARIES, "bytes", "bytes", "binary"),
    ((types.is_fixed_size_binary, types.is_decimal), "bytes", "bytes", ""),
    ((types.is_date32, types.is_time32), "int64", "int32", ""),
    (_LONG_TIMES, "int64", "int64", ""),
)


def features_of(
    schema: pa.Schema, columns: Sequence[str] | None = None
) -> dict[str, FeatureSpec]:
    """Returns the features of the columns of a table.

    They come in the order of the table: two lists of the same columns mean the same.

    Args:
        schema: The columns, with the metadata of the package `datasets` if there is
            any.
        columns: Names of those to take; by default all.

    Raises:
        InputError: There is no such column, a column has a type that no
            `tf.train.Example` holds, or two would become the same feature.
    """
    if columns is not None:
        _check_chosen(schema, columns)
    features: dict[str, FeatureSpec] = {}
    for leaf in leaves_of(schema, lambda name: columns is None or name in columns):
        if leaf.name in features:
            raise InputError(
                "two columns would become the same feature",
                expected="one column for each name",
                got=leaf.name,
                cure="rename one of them where the table is made, or leave one out "
                "with --columns",
            )
        features[leaf.name] = spec_of(leaf, schema.field(leaf.path[0]).name)
    if not features:
        raise InputError(
            "no column is left to make features of",
            got=f"the columns {some_of(schema.names, 20) or '(none)'}",
            cure="choose columns that hold values",
        )
    return features


def _check_chosen(schema: pa.Schema, columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in schema.names]
    if missing or not columns:
        raise InputError(
            "the table has no such column" if missing else "no column was chosen",
            expected=f"columns among {some_of(schema.names, 20)}",
            got=some_of(missing) or "none",
            cure="correct the names, or leave the choice out to take all columns",
        )


def spec_of(leaf: Leaf, column: str) -> FeatureSpec:
    """Returns the feature of a leaf.

    Raises:
        InputError: It has a type that no `tf.train.Example` holds.
    """
    fits = (rule for rule in _RULES if any(test(leaf.type) for test in rule[0]))
    rule = next(fits, None)
    if rule is None:
        raise _refused(leaf.name, column, leaf.type, "such values")
    _, kind, dtype, name = rule
    meaning, names = name or str(leaf.type), class_names(leaf.described)
    if names is not None and kind == "int64":
        meaning = CLASS_LABEL
    elif kind == "bytes":
        meaning = file_type(leaf.described) or meaning
    return FeatureSpec(
        kind=kind,
        dtype=dtype or str(leaf.type),
        shape=leaf.shape,
        optional=leaf.nullable,
        type=meaning,
        names=names or () if kind == "int64" else (),
    )


_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
DOUBLE = "double"
"""The type of 64-bit floats whose fractions are rounded to 32, and integers kept."""


def as_integers(spec: FeatureSpec) -> FeatureSpec:
    """Returns a feature of floats as one of integers, which all of them are."""
    return dataclasses.replace(spec, kind="int64", dtype="int64")


def as_rounded(spec: FeatureSpec) -> FeatureSpec:
    """Returns a feature of floats whose whole numbers may be rounded, too."""
    return dataclasses.replace(spec, type="float")


def read_as(found: FeatureSpec, spec: FeatureSpec) -> FeatureSpec:
    """Returns the feature of a column with the requested type, if possible."""
    same = dataclasses.replace(found, kind=spec.kind, dtype=spec.dtype, type=spec.type)
    if found.kind == "float" and any(
        (other.kind, other.type) == (spec.kind, spec.type)
        for other in (as_integers(found), as_rounded(found))
    ):
        return same
    return same if common_type(found, spec) == same else found


def common_type(one: FeatureSpec, other: FeatureSpec) -> FeatureSpec | None:
    """Returns the first feature with a type that holds all values of both, or None.

    Writers choose the smallest type for the values of a file, and pandas uses doubles
    for integers with gaps. Each of these is checked to be whole.
    """
    types = {one.type, other.type}
    if types == {"float", DOUBLE}:
        return dataclasses.replace(one, type=DOUBLE)
    if DOUBLE in types and types - {DOUBLE} <= _INTEGERS:
        whole = len(types) > 1 or "int64" in (one.kind, other.kind)
        double = dataclasses.replace(one, type=DOUBLE)
        return as_integers(double) if whole else one
    if types <= _INTEGERS:
        wide = np.result_type(*types).name
        # Those of 64 bits with a sign and without have no type in common.
        fits = wide in _INTEGERS
        return dataclasses.replace(one, type=wide, dtype=wide) if fits else None
    return one if (one.kind, one.type) == (other.kind, other.type) else None


def typed_features(schema: pa.Schema, columns: Sequence[str]) -> dict[str, FeatureSpec]:
    """Returns the features of the columns of a table; see `features_of`.

    Args:
        schema: The columns.
        columns: Names of those to take, all if empty. `*` stands for all others;
            `:int` or `:float` after a name decides the type of a column of floats.

    Raises:
        InputError: As in `features_of`, or a type does not suit a column.
    """
    types, names = {}, []
    for column in columns:
        name, colon, kind = column.rpartition(":")
        if colon and column not in schema.names and kind in ("int", "float"):
            types[name] = kind
            column = name
        if column not in types or column in schema.names:
            names.append(column)
    every = not names or "*" in names
    features = features_of(schema, None if every else names)
    for name, kind in types.items():
        spec = features.get(name)
        if spec is None or (spec.kind != "float" and spec.dtype != "int64"):
            raise InputError(
                "--columns gives a type to a column that has no floats",
                expected=f"a column of floats for {name}:{kind}",
                got="no such column" if spec is None else spec.type or spec.dtype,
                cure="leave the type out: Parquet files say what their columns hold",
            )
        if spec.kind == "float":
            make = as_integers if kind == "int" else as_rounded
            features[name] = make(spec)
    return features


def seen_numbers(
    batches: Iterable[tuple[str, pa.RecordBatch | None]], doubles: Features
) -> set[str]:
    """Returns the features that are kept as integers, as they are in a sample.

    Args:
        batches: Rows of files, each with its path.
        doubles: The features that may be.

    Raises:
        InputError: One of these has fractions as well.
    """
    seen = NumbersSeen()
    for path, batch in batches:
        for leaf in () if batch is None else leaves_of(batch.schema):
            if leaf.name not in doubles or not pa.types.is_float64(leaf.type):
                continue
            try:
                values, _ = leaf_values(batch, leaf)
            except RowError:
                continue  # The maker of records reports the fault.
            given = numpy_of(values.drop_null())
            lost, whole = are_lost(given), are_integers(given)
            seen.add(
                leaf.name,
                (int(number) for number in given[lost][:1]),
                given[~whole][:1],
                path,
            )
    return seen.integers()
