"""The features of the records of a split, where they are `tf.train.Example`.

A decoder needs nothing else: no schema is written by hand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, get_args

import numpy as np

from gristmill.dataset.base.errors import parsed

Kind = Literal["bytes", "float", "int64"]

# Names of the types, as numpy has them, of the values that each kind of list holds.
DTYPES: Mapping[Kind, Sequence[str]] = {
    "bytes": ("bytes",),
    "float": ("float16", "float32"),
    "int64": (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    ),
}

# Prefixes of the Arrow types whose numbers have a unit.
_TIMES = ("date", "time", "duration")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """One feature of the records.

    Attributes:
        kind: Which list of a `tf.train.Feature` holds its values.
        dtype: The type of these values: `bytes`, or a name of numpy's for the range of
            the numbers.
        shape: The shape of the values of a record: `()` for a single one, `(None,)`
            for a list of any length, `(3,)` for one of three.
        optional: Whether records may lack the feature.
        type: What a value means, in the words of Arrow, such as `string`,
            `timestamp[us, tz=UTC]` or `double`; empty if nothing more is known. An
            `image`, `audio` or `video` is a whole file; a `class_label` has names.
        names: The names of the classes that values number.
    """

    kind: Kind
    dtype: str
    shape: tuple[int | None, ...] = ()
    optional: bool = False
    type: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown kind of feature {self.kind!r}")
        if self.dtype not in DTYPES[self.kind]:
            raise ValueError(f"no dtype of a feature of {self.kind}: {self.dtype!r}")
        for size in self.shape:
            if size is not None and (type(size) is not int or size < 0):
                raise ValueError(f"impossible shape {self.shape!r}")
        if None in self.shape[1:]:
            raise ValueError(f"only the first dimension can vary, got {self.shape!r}")

    @property
    def values(self) -> int | None:
        """Number of values of each record, None if it varies."""
        sizes = [size for size in self.shape if size is not None]
        return math.prod(sizes) if len(sizes) == len(self.shape) else None

    def encode(self) -> dict[str, Any]:
        """Returns the JSON object that `parse` reads. Defaults are left out."""
        fields: dict[str, Any] = {"kind": self.kind, "dtype": self.dtype}
        fields["shape"] = list(self.shape)
        if self.optional:
            fields["optional"] = True
        if self.type:
            fields["type"] = self.type
        if self.names:
            fields["names"] = list(self.names)
        return fields

    @classmethod
    def parse(cls, fields: Any) -> Self:
        """Parses such an object; fields that this version does not know are ignored.

        Raises:
            KeyError, TypeError, ValueError: It is not such an object.
        """
        shape, names = fields["shape"], fields.get("names", [])
        if not isinstance(shape, list) or not isinstance(names, list):
            raise TypeError("shape and names must be lists")
        return cls(
            kind=fields["kind"],
            dtype=fields["dtype"],
            shape=tuple(shape),
            optional=fields.get("optional", False) is True,
            type=str(fields.get("type", "")),
            names=tuple(map(str, names)),
        )


Features = Mapping[str, FeatureSpec]
"""The features of records, by name, in the order of the source."""


def encode_features(features: Features) -> dict[str, Any]:
    """Returns features as a JSON object, for `dataset.json` and jobs."""
    return {name: spec.encode() for name, spec in features.items()}


def parse_features(fields: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    """Parses such an object.

    Raises:
        ValueError: It is not such an object; the message names the feature.
    """
    features = {}
    for name, spec in fields.items():
        try:
            features[name] = FeatureSpec.parse(spec)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            got = f"{type(e).__name__}: {e}"
            raise ValueError(f"feature {name!r} is badly described: {got}") from e
    return features


def joined_features(several: Sequence[Features | None]) -> Features | None:
    """Returns the description of records that fit one of several descriptions.

    A feature that only some have, or that is optional in some, is optional. If types
    differ, the wider one counts.

    Returns:
        The common description; None if one is not known, or if a feature has other
        lists or units of time in another.
    """
    joined: dict[str, FeatureSpec] = {}
    for features in several:
        if features is None:
            return None
        for name, spec in features.items():
            both = _joined(joined.get(name, spec), spec)
            if both is None:
                return None
            joined[name] = both
    return {
        name: dataclasses.replace(
            spec,
            optional=spec.optional or any(name not in (each or ()) for each in several),
        )
        for name, spec in joined.items()
    }


def joined_descriptions(
    several: Sequence[Mapping[str, Any] | None],
) -> Mapping[str, Any] | None:
    """Returns the same for JSON objects; None if one cannot be parsed."""
    if all(fields == several[0] for fields in several):
        return several[0]
    try:
        features = joined_features(
            [None if fields is None else parse_features(fields) for fields in several]
        )
    except ValueError:
        return None
    return None if features is None else encode_features(features)


def unlike_features(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None
) -> list[str]:
    """Returns the features that two descriptions have in incompatible forms."""
    if first is None or second is None:
        return []
    return sorted(
        name
        for name in first.keys() & second.keys()
        if joined_descriptions([{name: fields[name]} for fields in (first, second)])
        is None
    )


def _joined(first: FeatureSpec, second: FeatureSpec) -> FeatureSpec | None:
    """Returns the common description of two features, None if there is none."""
    if (first.kind, first.shape[1:]) != (second.kind, second.shape[1:]):
        return None
    if len(first.shape) != len(second.shape):
        return None
    types = (first.type, second.type)
    if first.type != second.type and any(each.startswith(_TIMES) for each in types):
        return None  # The numbers would have different units.
    dtype = first.dtype
    if dtype != second.dtype:
        # Integers are below 2**63, also of the unsigned 64-bit type.
        wider = np.promote_types(dtype, second.dtype)
        dtype = "int64" if first.kind == "int64" and wider.kind == "f" else wider.name
    return FeatureSpec(
        kind=first.kind,
        dtype=dtype,
        shape=first.shape if first.shape == second.shape else (None, *first.shape[1:]),
        optional=first.optional or second.optional,
        type=first.type if first.type == second.type else "",
        names=first.names if first.names == second.names else (),
    )


def described_features(
    fields: Mapping[str, Any] | None, *, where: str
) -> dict[str, FeatureSpec] | None:
    """Parses the features of a split in `dataset.json`, None if there are none.

    Args:
        fields: `Split.features`.
        where: The split, for messages.

    Raises:
        InvalidDatasetError: It cannot be parsed.
    """
    with parsed(
        "dataset.json describes the features of a split in a way that is not known",
        where,
        "install the version of gristmill that wrote it, or describe the features to "
        "loader.ExampleDecoder yourself",
    ):
        return None if fields is None else parse_features(fields)
