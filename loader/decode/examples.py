"""The decoder of batches of `tf.train.Example` to numpy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata.features import FeatureSpec
from gristmill.loader.decode.features import (
    Feature,
    FixedFeature,
    RaggedFeature,
)
from gristmill.loader.decode.scan import scan_examples


class HasFeatures(Protocol):
    """An object that describes its records, such as a `Dataset`."""

    @property
    def features(self) -> Mapping[str, FeatureSpec] | None:
        """Descriptions of the features by name; None if not known."""
        ...


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
        dataset: HasFeatures,
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
        described = dataset.features
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
