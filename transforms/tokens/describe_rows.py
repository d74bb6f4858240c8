"""The description of the rows of a job for `dataset.json`, and their features."""

from __future__ import annotations

import dataclasses
from typing import Any

from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.example_rows import SUPERVISION, WEIGHT
from gristmill.transforms.jobs.pack_options import PackOptions

_EXAMPLE_FEATURES = ("inputs", "inputs_position", "inputs_segmentation")


def described_rows(options: PackOptions, counts: PackedCounts) -> dict[str, Any]:
    """Returns the description of a finished split's rows for `dataset.json`."""
    assert options.found is not None  # The job was planned.
    found, chat = options.found, options.chat is not None
    return PackedSplit(
        rows=options.rows,
        length=options.length,
        id_bytes=found.id_bytes,
        vocabulary_size=found.vocabulary_size,
        method=options.method,
        counts=counts,
        supervised=counts.trained_tokens > 0,
        tokenizer=found.digest,
        bos_id=None if chat else found.bos_id,
        eos_id=None if chat else found.eos_id,
    ).encode()


def row_features(options: PackOptions, counts: PackedCounts) -> dict[str, Any] | None:
    """Returns the features of rows that are examples, None for others."""
    if options.rows != "example":
        return None
    spec = FeatureSpec(kind="int64", dtype="int32", shape=(options.length,))
    supervised = counts.trained_tokens > 0
    names = _EXAMPLE_FEATURES + SUPERVISION * supervised
    found = dict.fromkeys(names, spec)
    if supervised:
        weight = dataclasses.replace(spec, kind="float", dtype="float32")
        found[WEIGHT] = dataclasses.replace(weight, optional=True)
    return encode_features(found)
