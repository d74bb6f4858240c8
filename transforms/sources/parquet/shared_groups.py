"""Shards that read the same row groups, so that one task makes them in one pass.

A row group can only be read from its start: each of n shards made from one would read
all rows before its own, in total (n + 1) / 2 times its bytes. So three or more
consecutive shards of a row group are made by one task. Between two, half of it is read
again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.parquet.parquet_file import ParquetFile
from gristmill.dataset.formats.parquet.row_places import RowPlaces
from gristmill.dataset.storage.base import map_all
from gristmill.transforms.planning.shard_plan import ShardPlan
from gristmill.transforms.sources.input_files import InputFile, InputFiles

_MOST_FILES = 20_000  # Footers to read: minutes of a core.
_AT_ONCE = 16


def joined_shards(files: InputFiles, plan: ShardPlan) -> npt.NDArray[np.bool_]:
    """Returns which shards the task of the previous one makes: bool [shards].

    Reads the footers of files with several cuts.

    Args:
        files: Parquet files.
        plan: Plan of their shards.
    """
    joined = np.zeros(plan.shards, np.bool_)
    edges = np.append(0, np.cumsum(files.sizes))
    cut_files = np.searchsorted(edges[1:], plan.cut_bytes[1:-1], side="right")
    begins = plan.cut_bytes[1:-1] - edges[cut_files]
    by_file = itertools.groupby(
        (np.flatnonzero(begins > 0) + 1).tolist(),
        key=lambda shard: int(cut_files[shard - 1]),
    )
    several = ((file, cuts) for file, each in by_file if len(cuts := [*each]) > 1)
    found = [*itertools.islice(several, _MOST_FILES)]
    footers = map_all(_places, [files[file] for file, _ in found], at_once=_AT_ONCE)
    for (_, shards), places in zip(found, footers, strict=True):
        if places is None:
            continue
        groups = {shard: _cut_group(places, int(begins[shard - 1])) for shard in shards}
        counts = Counter(groups.values())
        for shard, group in groups.items():
            joined[shard] = group is not None and counts[group] > 1
    return joined


def _places(file: InputFile) -> RowPlaces | None:
    # The reader of a damaged file reports the damage.
    with (
        contextlib.suppress(CorruptRecordError),
        ParquetFile(file.path, file.size_bytes, file.version) as table,
    ):
        return table.places
    return None


def _cut_group(places: RowPlaces, offset: int) -> int | None:
    """Returns the row group that is cut at an offset, None between two."""
    row = places.rows_before(offset)
    group = next(places.groups_from(row), None)
    return None if group is None or row == group.first_row else group.number
