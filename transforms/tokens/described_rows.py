"""A packing job's description of its rows in `dataset.json`."""

from __future__ import annotations

from typing import Any

from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.packed_split import PackedSplit
from gristmill.transforms.jobs.pack_options import PackOptions

_EXAMPLE_FEATURES = ("inputs", "inputs_position", "inputs_segmentation")


def described_rows(options: PackOptions, counts: PackedCounts) -> dict[str, Any]:
    """Returns the description of a finished split's rows for `dataset.json`."""
    assert options.found is not None  # The job was planned.
    return PackedSplit(
        rows=options.rows,
        length=options.length,
        id_bytes=options.found.id_bytes,
        vocabulary_size=options.found.vocabulary_size,
        method=options.method,
        counts=counts,
    ).encode()


def row_features(options: PackOptions) -> dict[str, Any] | None:
    """Returns the features of rows that are examples, None for others."""
    if options.rows != "example":
        return None
    spec = FeatureSpec(kind="int64", dtype="int32", shape=(options.length,))
    return encode_features(dict.fromkeys(_EXAMPLE_FEATURES, spec))
