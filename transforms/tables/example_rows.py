"""Serialized `tf.train.Example` messages from the rows of a table.

Each column is encoded as a whole, and C++ code joins the pieces of the rows. The bytes
are those of TensorFlow's `SerializeToString(deterministic=True)`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.dataset.base.errors import InputError, RowError
from gristmill.dataset.base.example import ordered_names
from gristmill.dataset.metadata.features import Features, FeatureSpec
from gristmill.transforms.tables import hugging_face_types as hugging_face
from gristmill.transforms.tables.leaves import Leaf, leaf_values, leaves_of
from gristmill.transforms.tables.payloads import (
    BINARY,
    entry_headers,
    length_headers,
    payloads,
)
from gristmill.transforms.tables.table_features import DOUBLE, read_as, spec_of

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
        features: The result of `features_of` for the table.

    Raises:
        InputError: The columns of this batch do not fit the features.
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
    for leaf in leaves_of(schema, functools.partial(_has_features, features)):
        spec = features.get(leaf.name)
        if spec is None:
            continue
        found = read_as(spec_of(leaf, schema.field(leaf.path[0]).name), spec)
        if leaf.name in leaves or not _fits(found, spec):
            raise _other_columns(leaf.name, expected=spec, got=found)
        leaves[leaf.name] = dataclasses.replace(leaf, shape=spec.shape)
    for name, spec in features.items():
        if name not in leaves and not spec.optional:
            raise _other_columns(name, expected=spec, got=None)
    return [leaves[name] for _, name in ordered_names(leaves)]


def _has_features(features: Features, column: str) -> bool:
    fields = f"{column}."
    return any(name == column or name.startswith(fields) for name in features)


def _fits(found: FeatureSpec, spec: FeatureSpec) -> bool:
    """Returns whether values have the type of the feature.

    Lengths are checked by row; Hugging Face's metadata may be missing in other files.
    """
    told = hugging_face.is_meaning(spec.type) or hugging_face.is_meaning(found.type)
    return (
        (found.kind, found.dtype, len(found.shape))
        == (spec.kind, spec.dtype, len(spec.shape))
    ) and (told or found.type == spec.type)


def _other_columns(
    name: str, *, expected: FeatureSpec, got: FeatureSpec | None
) -> InputError:
    return InputError(
        f"column {name!r} is not what the features of the dataset say",
        expected=_in_words(expected),
        got="no such column" if got is None else _in_words(got),
        cure="convert files of other columns into a split of their own, or leave the "
        "column out with --columns",
    )


def _in_words(spec: FeatureSpec) -> str:
    shape = f" of shape {spec.shape}" if spec.shape else ""
    return f"{spec.type or spec.dtype}, {spec.dtype}{shape}"


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
            length = pc.fill_null(pc.binary_length(piece), 0)
            sizes += length.to_numpy(zero_copy_only=False)
    largest = int(sizes.max(initial=0))
    if largest > _MAX_RECORD_BYTES:
        raise RowError(
            "a row is too large for a tf.train.Example",
            expected=f"at most {_MAX_RECORD_BYTES:,} bytes",
            got=f"{largest:,}",
            cure="leave out its largest column with --columns",
            row=int(np.argmax(sizes)),
        )
    joined = pc.binary_join_element_wise(
        length_headers(b"\n", pa.array(sizes)),
        *pieces,
        pa.scalar(b"", BINARY),  # Between the pieces.
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
