"""Decodes a batch of `tf.train.Example` to numpy arrays, without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.dataset.errors import InputError
from gristmill.loader.decode.features import (
    Feature,
    FixedFeature,
    PaddedFeature,
    RaggedFeature,
)
from gristmill.loader.decode.scan import scan_examples


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
        keys: list[str] = []
        for name, feature in self.features.items():
            if not isinstance(feature, FixedFeature | PaddedFeature | RaggedFeature):
                raise InputError(
                    f"feature {name!r} is not described by a feature class",
                    expected="a FixedFeature, PaddedFeature or RaggedFeature",
                    got=repr(feature),
                )
            keys.append(name)
            if isinstance(feature, PaddedFeature):
                keys += [key for key in (feature.lengths, feature.mask) if key]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise InputError(
                "two arrays of a batch would have the same key",
                got=sorted(twice),
                cure="choose other names for lengths and mask",
            )
        object.__setattr__(self, "features", dict(self.features))

    def __call__(self, records: Sequence[bytes]) -> dict[str, Any]:
        """Decodes a batch.

        Returns:
            An array (of a `RaggedFeature` a `Ragged`) for each feature, by its name.

        Raises:
            DecodeError: A record is no `tf.train.Example`, or lacks what `features`
                describes.
        """
        scan = scan_examples(records)
        batch: dict[str, Any] = {}
        for name, feature in self.features.items():
            batch.update(feature.arrays(name, scan))
        return batch
