"""Shards that read the same row groups, so that one task makes them in one pass.

A row group can only be read from its start: each of n shards made from one would read
all rows before its own, in total (n + 1) / 2 times its bytes. So up to a size, three or
more consecutive shards of a row group are made by one task.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.parquet.parquet_file import ParquetFile
from gristmill.dataset.formats.parquet.row_places import RowGroup, RowPlaces
from gristmill.dataset.storage.base import map_all
from gristmill.transforms.planning.shard_plan import ShardPlan
from gristmill.transforms.sources.input_files import InputFile, InputFiles

TASK_BYTES = 4 << 30  # Maximum decoded bytes of a task: about a minute of a core.
_MOST_FILES = 20_000  # Footers to read: minutes of a core.
_AT_ONCE = 16


class SharedGroups(NamedTuple):
    """The tasks suggested by row groups.

    Attributes:
        joined: bool [shards], whether the task of the previous shard makes each shard.
        notes: A line for each row group that several tasks still have to read.
    """

    joined: npt.NDArray[np.bool_]
    notes: list[str]


def shared_groups(
    files: InputFiles, plan: ShardPlan, *, task_bytes: int = TASK_BYTES
) -> SharedGroups:
    """Finds the shards that one task should make; reads the footers of cut files.

    Args:
        files: Parquet files.
        plan: Plan of their shards.
        task_bytes: Maximum decoded bytes of a task of several shards.
    """
    joined = np.zeros(plan.shards, np.bool_)
    notes: list[str] = []
    edges = np.cumsum(files.sizes)
    cut_files = np.searchsorted(edges, plan.cut_bytes[1:-1], side="right")
    begins = plan.cut_bytes[1:-1] - np.append(0, edges)[cut_files]
    within = np.flatnonzero(begins > 0)
    by_file = itertools.groupby(
        (within + 1).tolist(), key=lambda shard: int(cut_files[shard - 1])
    )
    # At most the file itself is read a second time if it has one cut.
    several = (shards for _, each in by_file if len(shards := list(each)) > 1)
    in_file = list(itertools.islice(several, _MOST_FILES))
    whole = [files[int(cut_files[shards[0] - 1])] for shards in in_file]
    found = map_all(_places, whole, at_once=_AT_ONCE)
    for file, shards, places in zip(whole, in_file, found, strict=True):
        if places is not None:
            rows = [places.rows_before(int(begins[shard - 1])) for shard in shards]
            for place in _joined(places, rows, task_bytes):
                joined[shards[place]] = True
            notes += _notes(file, places, rows, task_bytes)
    return SharedGroups(joined, notes)


def _places(file: InputFile) -> RowPlaces | None:
    # The reader of a damaged file reports the damage.
    with (
        contextlib.suppress(CorruptRecordError),
        ParquetFile(file.path, file.size_bytes, file.version) as table,
    ):
        return table.places
    return None


def _joined(places: RowPlaces, rows: Sequence[int], task_bytes: int) -> Iterator[int]:
    """Yields the cuts of a file, by number, between shards that one task makes."""
    # Between two shards of a row group, half of it is read again.
    wanted = {
        cut for _, cuts in _cuts_by_group(places, rows) for cut in cuts if len(cuts) > 1
    }
    at = [*_decoded_bytes(places, rows), sum(g.raw_bytes for g in places.groups)]
    begin = 0.0
    for cut in range(len(rows)):
        if cut in wanted and at[cut + 1] - begin <= task_bytes:
            yield cut
        else:
            begin = at[cut]


def _cuts_by_group(
    places: RowPlaces, rows: Sequence[int]
) -> Iterator[tuple[RowGroup, list[int]]]:
    """Yields the row groups that are cut, each with the numbers of its cuts."""
    groups = [next(places.groups_from(row), None) for row in rows]
    numbers = itertools.groupby(range(len(rows)), key=lambda cut: groups[cut])
    for group, cuts in numbers:
        if group is not None:
            inside = [cut for cut in cuts if rows[cut] > group.first_row]
            if inside:
                yield group, inside


def _decoded_bytes(places: RowPlaces, rows: Sequence[int]) -> Iterator[float]:
    """Yields the bytes of a file decoded before each of some rows."""
    before = dict(
        zip(
            (group.number for group in places.groups),
            itertools.accumulate((g.raw_bytes for g in places.groups), initial=0),
            strict=False,
        )
    )
    for row in rows:
        group = next(places.groups_from(row), None)
        if group is None:
            yield float(sum(g.raw_bytes for g in places.groups))
        else:
            share = (row - group.first_row) / group.rows
            yield before[group.number] + share * group.raw_bytes


def _notes(
    file: InputFile, places: RowPlaces, rows: Sequence[int], task_bytes: int
) -> list[str]:
    return [
        f"{file.path}: row group {group.number:,} decodes to {group.raw_bytes:,} "
        f"bytes, and {len(cuts) + 1:,} shards are made of it. Several tasks read it, "
        "each from its begin to its own rows. Smaller row groups are read once"
        for group, cuts in _cuts_by_group(places, rows)
        if group.raw_bytes > 2 * task_bytes
    ]
