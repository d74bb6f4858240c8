"""The records of a dataset that have one of some values in a feature."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.base.example import INTS
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.decode.features import RaggedFeature
from gristmill.loader.decode.scan import scan_examples

_BLOCK_RECORDS = 1024


def find_values(
    dataset: Dataset, feature: str, values: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """Yields the records that have one of some values. It reads all records.

    Args:
        dataset: The dataset, of `tf.train.Example`.
        feature: The name of the feature: texts or integers, any number in a record.
        values: The values, integers in digits.

    Yields:
        The number of a value, and that of a record.

    Raises:
        InputError: The dataset has no such feature.
        DecodeError: Its records are no `tf.train.Example`, or the feature has numbers
            that are no integers.
    """
    known = dataset.features
    if known is not None and feature not in known:
        raise InputError(
            f"the dataset has no feature {feature!r}",
            where=repr(dataset),
            expected=f"one of {some_of(known, 20)}",
            cure="correct --column",
        )
    texts = {text.encode(): number for number, text in enumerate(values)}
    integers: dict[int, int] = {}
    for number, text in enumerate(values):
        with contextlib.suppress(ValueError):
            integers[int(text)] = number
    for begin in range(0, len(dataset), _BLOCK_RECORDS):
        numbers = np.arange(begin, min(begin + _BLOCK_RECORDS, len(dataset)))
        scan = scan_examples(dataset.read(numbers))
        of_integers = bool((scan.column(feature.encode()).kinds == INTS).any())
        decoder = RaggedFeature(np.int64 if of_integers else bytes, optional=True)
        found = decoder.arrays(feature, scan)[feature]
        rows = np.repeat(numbers, np.diff(found.row_splits))
        wanted: dict[int, int] | dict[bytes, int] = integers if of_integers else texts
        for record, value in zip(rows.tolist(), found.values.tolist(), strict=True):
            if value in wanted:
                yield wanted[value], record
