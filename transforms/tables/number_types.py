"""Columns of floats that are kept as integers, or rounded to 32 bits."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa

from gristmill.dataset.base.errors import InputError, RowError
from gristmill.dataset.metadata.features import Features, FeatureSpec
from gristmill.transforms.tables.leaves import leaf_values, leaves_of
from gristmill.transforms.tables.table_features import features_of
from gristmill.transforms.tables.whole_numbers import (
    NumbersSeen,
    are_integers,
    are_lost,
)

DOUBLE = "double"
"""Of numbers of 64 bits: fractions are rounded to 32, and whole numbers are kept."""


def as_integers(spec: FeatureSpec) -> FeatureSpec:
    """Returns a feature of floats as one of integers, which all of them are."""
    return dataclasses.replace(spec, kind="int64", dtype="int64")


def as_rounded(spec: FeatureSpec) -> FeatureSpec:
    """Returns a feature of floats whose whole numbers may be rounded, too."""
    return dataclasses.replace(spec, type="float")


def read_as(found: FeatureSpec, spec: FeatureSpec) -> FeatureSpec:
    """Returns the feature of a column with the requested type, if possible."""
    if found.kind != "float":
        return found
    for other in (as_integers(found), as_rounded(found)):
        if (other.kind, other.type) == (spec.kind, spec.type):
            return other
    return found


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


def seen_numbers(batches: Iterable[pa.RecordBatch], doubles: Features) -> set[str]:
    """Returns the features that are kept as integers, as they are in a sample.

    Args:
        batches: The sample.
        doubles: Features that are of type `DOUBLE`.

    Raises:
        InputError: One of these has fractions as well.
    """
    seen: defaultdict[str, NumbersSeen] = defaultdict(NumbersSeen)
    for batch in batches:
        for leaf in leaves_of(batch.schema):
            if leaf.name not in doubles or not pa.types.is_float64(leaf.type):
                continue
            try:
                values, _ = leaf_values(batch, leaf)
            except RowError:
                continue  # The maker of records reports the fault.
            given = values.drop_null().to_numpy(zero_copy_only=False)
            lost, whole = are_lost(given), are_integers(given)
            seen[leaf.name].add(
                (int(number) for number in given[lost][:1]),
                given[~whole][:1],
            )
    return {name for name, numbers in seen.items() if numbers.are_integers(name)}
