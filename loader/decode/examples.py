"""Decoders of batches of `tf.train.Example` to numpy arrays.

===============  =========================================  ============================
feature          of a batch of n records                    where it is missing
===============  =========================================  ============================
`FixedFeature`   [n, *shape]                                the default, or an error
`RaggedFeature`  values [all], row_splits [n + 1]           no values if optional
===============  =========================================  ============================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError, InputError, some_of
from gristmill.dataset.base.example import NO_KIND
from gristmill.dataset.metadata.features import FeatureSpec
from gristmill.loader.base.indices import (
    AnyArray,
    BoolArray,
    IntArray,
    checked_count,
    not_opened,
)
from gristmill.loader.decode.scan import (
    BrokenListError,
    Scan,
    Values,
    cast,
    checked_dtype,
    constant,
    first_outside,
    kind_of,
    limits_of,
    name_of,
    scan_examples,
    values_of,
)

_KIND_NAMES = ("nothing", "bytes_list", "float_list", "int64_list")


class Ragged(NamedTuple):
    """Values of records of any length.

    Attributes:
        values: [all], one record after the other.
        row_splits: int64 [records + 1]; record i has values
            [row_splits[i], row_splits[i + 1]).
    """

    values: AnyArray
    row_splits: IntArray


def _decode(
    name: str, scan: Scan, dtype: np.dtype[Any], *, optional: bool
) -> tuple[Values, BoolArray]:
    """Returns the values of a feature as `dtype`, and whether each record has it."""
    column = scan.column(name.encode())
    kind = kind_of(dtype)
    missing = column.kinds == NO_KIND
    wrong = (column.kinds != kind) & ~missing
    if not optional:
        wrong |= missing
    if wrong.any():
        row = int(np.argmax(wrong))
        if missing[row]:
            names = some_of(scan.names_of(row), 20) or "none"
            _fail(
                name,
                row,
                "record lacks a feature",
                expected=f"feature {name!r}, {_KIND_NAMES[kind]}",
                got=f"the features {names}",
                cure="correct the name, or allow missing features with default=... "
                "or optional=True; with ExampleDecoder.of, by "
                f"defaults={{{name!r}: ...}}",
            )
        _fail(
            name,
            row,
            "feature has another kind of values",
            expected=f"{_KIND_NAMES[kind]}, for {name_of(dtype)}",
            got=_KIND_NAMES[column.kinds[row]],
            cure="choose a dtype for this kind",
        )
    try:
        values, counts = values_of(scan, column, kind)
    except BrokenListError as e:
        _fail(
            name,
            e.row,
            "feature cannot be decoded",
            expected=_KIND_NAMES[kind],
            got=str(e),
            cure="check the source of the records: they were damaged before the "
            "conversion",
        )
    number = first_outside(values, dtype)
    if number is not None:
        least, most = limits_of(dtype)
        _fail(
            name,
            int(np.searchsorted(np.cumsum(counts), number, side="right")),
            "feature has a value that its dtype cannot hold",
            expected=f"{dtype.name}, {least} to {most}",
            got=int(values[number]),
            cure="choose a larger dtype",
        )
    return Values(cast(values, dtype), counts), ~missing


def _fail(name: str, row: int, what: str, **facts: Any) -> NoReturn:
    raise DecodeError(f"{what}: {name!r}", row=row, **facts)


@dataclasses.dataclass(frozen=True)
class FixedFeature:
    """A feature with the same number of values in every record.

    It gives an array `[records, *shape]`; bytes are an array of objects.

    Attributes:
        dtype: Type of the array: bytes, bool, any integer or floating-point type.
            Integers that do not fit it are errors.
        shape: Shape of the values of a record; () for a single one.
        default: Replaces the feature in records that lack it: a value, or values of
            the shape. None makes that an error.
    """

    dtype: npt.DTypeLike
    _: dataclasses.KW_ONLY
    shape: tuple[int, ...] = ()
    default: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple | list):
            raise InputError(
                "shape of a feature is not a tuple",
                expected="a tuple such as (2048,), () for a single value",
                got=repr(self.shape),
                cure="give a tuple of the sizes of all dimensions",
            )
        shape = [
            checked_count(size, what="a dimension of shape") for size in self.shape
        ]
        object.__setattr__(self, "shape", tuple(shape))
        dtype = checked_dtype(self.dtype)
        object.__setattr__(self, "dtype", dtype)
        if self.default is not None:
            self._default(dtype)

    def _default(self, dtype: np.dtype[Any]) -> AnyArray:
        return constant(self.default, dtype, shape=self.shape)

    def array(self, name: str, scan: Scan) -> Any:
        """Returns the array of a batch."""
        dtype = checked_dtype(self.dtype)
        optional = self.default is not None
        (values, counts), there = _decode(name, scan, dtype, optional=optional)
        size = math.prod(self.shape)
        wrong = there & (counts != size)
        if wrong.any():
            row = int(np.argmax(wrong))
            _fail(
                name,
                row,
                "feature has another number of values",
                expected=f"{size:,}, for shape {self.shape}",
                got=f"{int(counts[row]):,}",
                cure="correct the shape, or use RaggedFeature",
            )
        if there.all():
            return values.reshape(scan.records, *self.shape)
        out = np.empty((scan.records, *self.shape), dtype)
        out[there] = values.reshape(-1, *self.shape)
        out[~there] = self._default(dtype)
        return out


@dataclasses.dataclass(frozen=True)
class RaggedFeature:
    """A feature with any number of values in each record, without padding.

    It gives a `Ragged`: all values, and where those of each record begin and end.

    Attributes:
        dtype: As in `FixedFeature`.
        optional: Whether records may lack the feature; they then have no values.
    """

    dtype: npt.DTypeLike
    _: dataclasses.KW_ONLY
    optional: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))

    def array(self, name: str, scan: Scan) -> Any:
        """Returns the array of a batch."""
        dtype = checked_dtype(self.dtype)
        (values, counts), _ = _decode(name, scan, dtype, optional=self.optional)
        row_splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Ragged(values, row_splits)


Feature: TypeAlias = FixedFeature | RaggedFeature


@dataclasses.dataclass(frozen=True)
class ExampleDecoder:
    """Decodes a batch of serialized `tf.train.Example` to a dict of numpy arrays.

    It is configuration and pickles: give it to `feed(decode=...)`, or call it with a
    list of records.

    Attributes:
        features: How to decode each feature, by its name. Others are ignored.
    """

    features: Mapping[str, Feature]

    def __post_init__(self) -> None:
        for name, feature in self.features.items():
            if not isinstance(feature, FixedFeature | RaggedFeature):
                raise InputError(
                    f"feature {name!r} is not described by a feature class",
                    expected="a FixedFeature or a RaggedFeature",
                    got=repr(feature),
                    cure="describe it with one of these classes",
                )
        object.__setattr__(self, "features", dict(self.features))

    @classmethod
    def of(
        cls,
        dataset: Any,
        names: Sequence[str] | None = None,
        *,
        defaults: Mapping[str, Any] | None = None,
    ) -> Self:
        """Creates a decoder from a dataset's description of its features.

        A feature of one value, or of a fixed shape, becomes a `FixedFeature`. A list
        becomes a `RaggedFeature`, even if its items have a shape.

        Args:
            dataset: The dataset.
            names: The features to decode; by default all described ones.
            defaults: Values for features that a record lacks, such as nulls of a table.
                Without a default, such a record is an error, or a list without values.

        Raises:
            InputError: The dataset does not describe its features, lacks one of the
                names, or a default does not fit.
        """
        if not hasattr(dataset, "features"):
            raise not_opened(dataset)
        described: Mapping[str, FeatureSpec] | None = dataset.features
        if described is None:
            raise InputError(
                "the dataset does not say what features its records have",
                where=repr(dataset),
                cure="describe them: loader.ExampleDecoder({name: "
                "loader.FixedFeature(dtype), ...}); packed rows have none: "
                "loader.PackedRows.of(dataset)",
            )
        names = [*described] if names is None else names
        for given, known, what in (
            (names, described, "the dataset has no feature"),
            (defaults or {}, names, "a default is for no feature that is decoded:"),
        ):
            unknown = [name for name in given if name not in known]
            if unknown:
                raise InputError(
                    f"{what} {unknown[0]!r}",
                    where=repr(dataset),
                    expected=f"one of {some_of(known, 20)}",
                    cure="correct the name",
                )
        return cls(
            {name: _decoded(name, described[name], defaults or {}) for name in names}
        )

    def __call__(self, records: Sequence[bytes]) -> dict[str, Any]:
        """Decodes a batch.

        Returns:
            An array (a `Ragged` for a `RaggedFeature`) for each feature, by name.

        Raises:
            DecodeError: A record is not a `tf.train.Example`, or lacks one of
                `features`.
        """
        scan = scan_examples(records)
        return {
            name: feature.array(name, scan) for name, feature in self.features.items()
        }


def _decoded(name: str, spec: FeatureSpec, defaults: Mapping[str, Any]) -> Feature:
    """Returns the decoder of a feature."""
    dtype = bytes if spec.kind == "bytes" else spec.dtype
    shape = tuple(size for size in spec.shape if size is not None)
    if len(shape) == len(spec.shape):
        return FixedFeature(dtype, shape=shape, default=defaults.get(name))
    if name in defaults:
        raise InputError(
            f"a list needs no default: {name!r} has no values in records that lack it",
            got=repr(defaults[name]),
            cure="leave out the default",
        )
    return RaggedFeature(dtype, optional=spec.optional)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenDecoder:
    """Decodes a batch of token sequences to an array int32 [records, length].

    Attributes:
        length: Tokens in every record.
        stored: Type of the tokens in the records, which are little-endian and end to
            end: an integer type of at most the range of int32, such as uint16.
    """

    length: int
    stored: npt.DTypeLike = "int32"

    def __post_init__(self) -> None:
        checked_count(self.length, what="length")
        stored = np.dtype(self.stored)
        if stored.kind not in "iu" or not np.can_cast(stored, np.int32):
            raise InputError(
                "stored is not a type of tokens",
                expected="an integer type whose values fit into int32",
                got=stored.name,
                cure="choose one, such as int32 or uint16, or decode by a function of "
                "your own",
            )
        object.__setattr__(self, "stored", stored)

    def __call__(self, records: Sequence[bytes]) -> npt.NDArray[np.int32]:
        """Decodes a batch.

        Raises:
            DecodeError: A record has another size.
        """
        stored = np.dtype(self.stored).newbyteorder("<")
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        size = self.length * stored.itemsize
        if (sizes != size).any():
            row = int(np.argmax(sizes != size))
            raise DecodeError(
                "record has another number of tokens than length",
                row=row,
                expected=f"{size:,} bytes: {self.length:,} tokens as {stored.name}",
                got=f"{int(sizes[row]):,} bytes",
                cure="correct length and stored; for other lengths use an "
                "ExampleDecoder, or a function of your own",
            )
        # A bytearray, so that the array can be written to.
        joined = bytearray().join(records)
        tokens = np.frombuffer(joined, stored).reshape(len(records), self.length)
        return tokens.astype(np.int32, copy=False)
