"""The place where a record was found, on the way to its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.metadata.provenance import (
    NUMBERED,
    DamagedRegion,
    SourceFile,
    record_numbers,
)
from gristmill.dataset.metadata.shard_report import SourceSpan


class Found(NamedTuple):
    """The place where a record was found, on the way to its source.

    Attributes:
        file: The file that it was read from.
        span: The range of the file that was read with it.
        number: Its number among the records of the range.
        at: Number, in the dataset, of the first of them; None if they are not in the
            dataset as they were in the range.
        regions: What was set aside of that file.
    """

    file: SourceFile
    span: SourceSpan
    number: int
    at: int | None
    regions: Sequence[DamagedRegion]


def record_number(found: Found) -> int | None:
    """Returns a record's number in a file whose places are such; None if not known."""
    if found.file.format not in NUMBERED:
        return None
    numbers = record_numbers(found.span, np.array([found.number]), found.regions)
    return None if numbers is None else int(numbers[0])
