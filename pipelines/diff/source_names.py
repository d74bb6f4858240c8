"""The source files of many records, from the tables of shards alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.metadata.lineage import Ancestor

Int64 = npt.NDArray[np.int64]
UNKNOWN = -1


class SourceNames(NamedTuple):
    """The source file of each of some records.

    Attributes:
        names: Paths of files.
        numbers: int64 [records], which of the names each has, or `UNKNOWN`.
    """

    names: list[str]
    numbers: Int64


def source_names(
    levels: Sequence[Ancestor], shards: Int64, records: Int64
) -> SourceNames:
    """Returns the files that records were made of, followed as far as they are known.

    Args:
        levels: The split and its ancestors, as `lineage.ancestors_of` returns them.
        shards: int64 [n], the shard of each record in the split.
        records: int64 [n], its number in the shard.
    """
    names: dict[str, int] = {}
    numbers = np.full(len(shards), UNKNOWN, np.int64)
    left = np.arange(len(shards))
    for level in levels:
        files, records = _files_of(level, shards, records)
        known = (files >= 0) & (files < len(level.files))
        left, files, records = left[known], files[known], records[known]
        if not len(left):
            break
        used, inverse = np.unique(files, return_inverse=True)
        found = [level.files[number] for number in used.tolist()]
        own = [names.setdefault(file.path, len(names)) for file in found]
        numbers[left] = np.array(own, np.int64)[inverse]
        # Only shards were made of files themselves.
        further = np.array([file.format == "arrayrecord" for file in found])[inverse]
        left, shards, records = left[further], files[further], records[further]
    return SourceNames(list(names), numbers)


def _files_of(level: Ancestor, shards: Int64, records: Int64) -> tuple[Int64, Int64]:
    """Returns the file of each record and its number there, `UNKNOWN` for neither."""
    columns = level.columns
    if not len(columns["records"]):
        return (np.full(len(shards), UNKNOWN, np.int64),) * 2
    # Of an ancestor, shards can be missing where files were given beside it.
    inside = shards < len(columns["records"])
    shards = np.where(inside, shards, 0)
    ends = columns["span_ends"]
    begins = np.append(0, ends[:-1])
    counts = columns["span_records"]
    passed = np.append(0, np.cumsum(counts))
    # With a function that drops or adds records, the spans do not add up.
    exact = (passed[ends] - passed[begins] == columns["records"])[shards]
    exact &= inside & (records >= 0) & (records < columns["records"][shards])
    at = np.where(exact, passed[begins[shards]] + records, 0)
    rows = np.searchsorted(passed, at, side="right") - 1
    exact &= rows < len(counts)
    rows = np.where(exact, rows, 0)
    if not len(counts):
        return (np.full(len(shards), UNKNOWN, np.int64),) * 2
    files = np.where(
        exact, columns["span_file"][rows], _only_files(begins, ends, columns)[shards]
    )
    starts, stops = columns["span_start_bytes"][rows], columns["span_stop_bytes"][rows]
    whole = exact & (starts >= 0) & (stops - starts == counts[rows])
    numbers = np.where(whole, starts + at - passed[rows], UNKNOWN)
    return np.where(inside, files, UNKNOWN), numbers


def _only_files(begins: Int64, ends: Int64, columns: Mapping[str, Any]) -> Int64:
    """Returns the one file that each shard is of, `UNKNOWN` for several and none."""
    taken = columns["span_records"] > 0
    owners = np.repeat(np.arange(len(ends)), ends - begins)[taken]
    files = columns["span_file"][taken].astype(np.int64)
    least = np.full(len(ends), np.iinfo(np.int64).max)
    most = np.full(len(ends), UNKNOWN, np.int64)
    np.minimum.at(least, owners, files)
    np.maximum.at(most, owners, files)
    return np.where(least == most, most, UNKNOWN)
