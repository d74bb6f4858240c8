"""Where a record was found, on the way to its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gristmill.dataset.metadata.provenance import DamagedRegion, SourceFile
from gristmill.dataset.metadata.shard_report import SourceSpan

NUMBERED = ("arrayrecord", "parquet")
"""Formats in which the place of a record is its number."""


class Found(NamedTuple):
    """Where a record was found, on the way to its source.

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
    span = found.span
    if found.file.format not in NUMBERED:
        return None
    if span.start_bytes is None or span.stop_bytes is None:
        return None
    number = span.start_bytes + found.number
    lost = span.stop_bytes - span.start_bytes - span.records
    aside = sorted(region.rows for region in found.regions if region.rows is not None)
    for begin, end in aside:
        if span.start_bytes <= begin < span.stop_bytes:
            lost -= min(end, span.stop_bytes) - begin
            number += end - begin if begin <= number else 0
    return number if lost == 0 else None  # Not all that was set aside is listed.
