"""The columns of a table down to plain values, each of which becomes a feature."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.dataset.base.errors import InputError, RowError

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


def is_meaning(name: str) -> bool:
    """Returns whether the type of a feature is known only by these descriptions."""
    return name == CLASS_LABEL or name in _FILES.values()


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


ITEMS = -1
"""The step of a path from a list to its items."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Values of a column, or of a field somewhere within it.

    Attributes:
        name: Name of the feature.
        path: How to get there: number of the column, then of each field, or `ITEMS`.
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
        # How `datasets` keeps images and other files: the path only names the origin.
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
            raise _refused(at, column, "lists of lists whose length varies")
        below = dataclasses.replace(
            at,
            path=(*at.path, ITEMS),
            type=kind.value_type,
            shape=(*at.shape, size),
            described=of_items(at.described),
        )
        yield from _below(below, column=column)
    elif pa.types.is_nested(kind):
        raise _refused(at, column, "a map" if pa.types.is_map(kind) else "a union")
    else:
        yield dataclasses.replace(at, type=kind)


def _is_list(kind: pa.DataType) -> bool:
    tests = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    return any(test(kind) for test in tests)


def _refused(at: Leaf, column: pa.Field, what: str) -> InputError:
    return refused(at.name, column.type, what=what, column=column.name)


def refused(name: str, got: object, *, what: str, column: str) -> InputError:
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


def ends_of(counts: Any) -> npt.NDArray[np.int64]:
    """Returns the end of the items of each row, after a zero: int64 [rows + 1]."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def row_of(ends: npt.NDArray[np.int64], item: int) -> int:
    """Returns the row of an item."""
    return int(np.searchsorted(ends, item, side="right")) - 1


def rows_without_nulls(
    batch: pa.RecordBatch, wanted: Callable[[str], bool]
) -> npt.NDArray[np.int64]:
    """Returns the rows without a null in the features to check.

    Nor an item of a list.
    """
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


def _valid(values: Any) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = numpy_of(pc.is_valid(values))
    return found
