"""The records that datasets in between have of a place of an original file."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.lineage import Ancestor
from gristmill.dataset.metadata.provenance import NUMBERED, numbers_of
from gristmill.dataset.metadata.sources import SourceFile
from gristmill.loader.provenance.found_record import Found, record_number

OffsetOf = Callable[[Ancestor, SourceFile, int], int | None]
"""Returns the offset, in its source, of a record of a shard of an ancestor."""


def places_of(
    files: Sequence[SourceFile],
    ancestors: Sequence[Ancestor],
    path: str,
    place: int,
    offset_of: OffsetOf,
) -> Iterator[tuple[int, int]]:
    """Yields what a place of a file is in the files that a split was made of.

    Args:
        files: These files.
        ancestors: Their source datasets, the nearest first.
        path: The file, one of these or one that an ancestor was made of.
        place: The place in it.
        offset_of: Tells offsets that ancestors themselves have not kept, or None.

    Yields:
        The number of a file and the place there: of an ancestor's file, the records
        that datasets in between have of it.

    Raises:
        InputError: These records are not known.
    """
    yield from ((number, place) for number in numbers_of(files, path))
    for level, ancestor in enumerate(ancestors):
        for number in numbers_of(ancestor.files, path):
            for shard, record in _records_at(
                ancestors, files, level, number, place, offset_of
            ):
                yield from _down(ancestors, files, level, shard, record, offset_of)


def _down(
    ancestors: Sequence[Ancestor],
    files: Sequence[SourceFile],
    level: int,
    shard: int,
    record: int,
    offset_of: OffsetOf,
) -> Iterator[tuple[int, int]]:
    """Yields what a record of an ancestor is in the files of the edition itself."""
    if level == 0:
        yield shard, record  # The shards of an ancestor are the files read from it.
        return
    for nearer, number in _records_at(
        ancestors, files, level - 1, shard, record, offset_of
    ):
        yield from _down(ancestors, files, level - 1, nearer, number, offset_of)


def _records_at(
    ancestors: Sequence[Ancestor],
    files: Sequence[SourceFile],
    level: int,
    file: int,
    place: int,
    offset_of: OffsetOf,
) -> Iterator[tuple[int, int]]:
    """Yields the shards of an ancestor, and records in them, made of a place."""
    ancestor = ancestors[level]
    columns = ancestor.columns
    rows = np.flatnonzero(
        (columns["span_file"] == file)
        & (columns["span_start_bytes"] <= place)
        & (place < columns["span_stop_bytes"])
    )
    shards = np.searchsorted(columns["span_ends"], rows, side="right")
    for row, shard in zip(rows.tolist(), shards.tolist(), strict=True):
        begin = int(columns["span_ends"][shard - 1]) if shard else 0
        counts = columns["span_records"][begin : row + 1]
        last = int(counts.sum())
        records = range(last - int(counts[-1]), last)
        of_shard = (files if level == 0 else ancestors[level - 1].files)[shard]
        place_at = functools.partial(_place_in, ancestor, shard, of_shard, offset_of)
        at = bisect.bisect_left(records, place, key=place_at)
        if at < len(records) and place_at(records[at]) == place:
            yield shard, records[at]


def _place_in(
    ancestor: Ancestor, shard: int, file: SourceFile, offset_of: OffsetOf, record: int
) -> int:
    """Returns the place in its source of a record of an ancestor's shard."""
    place = None
    taken = ancestor.taken(shard, record)
    if taken is not None and taken.file.format in NUMBERED:
        before = int(ancestor.columns["records"][:shard].sum())
        number = before + record - taken.first_record
        place = record_number(
            Found(taken.file, taken.span, number, None, taken.regions)
        )
    elif taken is not None:
        place = offset_of(ancestor, file, record)
    if place is None:
        raise InputError(
            "the places of records in the file are not known: what was packed was made "
            "of it by another conversion",
            where=ancestor.dataset,
            expected="that dataset as it was, of records as they were in the file",
            got="another one or none, or records that a function changed, or lines",
            cure=f"give the record in that dataset, such as {file.path}@{record}",
        )
    return place
