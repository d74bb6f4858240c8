"""A record on the way to its source, through the datasets that it was read from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.metadata.lineage import Ancestor
from gristmill.dataset.metadata.provenance import (
    NUMBERED,
    DamagedRegion,
    record_numbers,
)
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.sources import SourceFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassedShard:
    """A shard of another dataset that a record was read from.

    Attributes:
        path: The file, as the conversion that read it was given it.
        record: The record's number in it.
    """

    path: str
    record: int


def follow(
    found: Found,
    ancestors: Sequence[Ancestor],
    *,
    records: int,
    begin: int,
    number: int | None = None,
) -> tuple[Found, dict[str, Any]]:
    """Follows a record through the datasets that it was read from.

    Args:
        found: Where it was found.
        ancestors: These datasets, the nearest first.
        records: How many records the last edition has, -1 if some were lost on the
            way into it.
        begin: Number, in the last dataset, of the first of them.
        number: Its number in the file where it was found, if that is known.

    Returns:
        Where it was found last, and fields of its location.
    """
    passed: list[PassedShard] = []
    fields: dict[str, Any] = {}
    for ancestor in ancestors:
        number = record_number(found) if number is None else number
        if number is None:
            break
        shard = found.span.file_index
        taken = ancestor.taken(shard, number)
        if taken is None:
            if ancestor.function is not None:
                fields["source_note"] = (
                    f"the function {ancestor.function} returned more or fewer records "
                    f"on the way into {ancestor.dataset}: what they were made of was "
                    "not kept"
                )
            break
        passed.append(PassedShard(path=found.file.path, record=number))
        if ancestor.function is not None:
            fields["source_note"] = changed_note(ancestor.function)
        elif found.at is not None and ancestor.records != records:
            fields["source_note"] = (
                "records were set aside or removed on the way: their lengths, and so "
                "the bytes of others, are not known"
            )
        same = found.at is not None and ancestor.function is None
        same &= ancestor.records == records
        before = int(ancestor.columns["records"][:shard].sum())
        skipped = taken.span.skipped_records
        found = Found(
            taken.file,
            taken.span,
            before + number - taken.first_record + skipped,
            begin + taken.first_record - skipped if same else None,
            taken.regions,
        )
        number = None
    return found, fields | {"passed": tuple(passed)}


def changed_note(function: str | None) -> str | None:
    """Returns why lengths are unknown after a user's function, None without one."""
    if function is None:
        return None
    return (
        f"the function {function} changed the records: their lengths in the source "
        "were not kept"
    )


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
