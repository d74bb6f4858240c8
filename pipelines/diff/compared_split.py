"""One of two splits that are compared: its shards, checksums and sources."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.lineage import Ancestor, ancestors_of
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.shards.open_shard import ShardFacts, read_index, stored_footer
from gristmill.dataset.storage.base import map_all
from gristmill.loader.data.dataset import Dataset, shards_of, table_of
from gristmill.pipelines.diff.differing import Int64, RecordPart

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


_AT_ONCE = 16
_BATCH_BYTES = 64 << 20
_MOST_BATCH_RECORDS = 1 << 16


class ComparedSplit:
    """A split that is compared with another.

    Attributes:
        dataset: The split, open.
        records_read: How many of its records had to be read.
    """

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.records_read = 0

    @functools.cached_property
    def split(self) -> Split:
        """What `dataset.json` says of it."""
        split = self.dataset.committed
        if split is None:
            raise InputError(
                "no dataset that gristmill made",
                where=self.dataset.path,
                expected="a directory with a dataset.json",
                cure="make it a dataset with `gristmill index`",
            )
        return split

    @functools.cached_property
    def table(self) -> ShardTable:
        """The table of its shards."""
        table = table_of(self.dataset)
        # A committed split has one.
        assert table is not None, self.split
        return table

    @functools.cached_property
    def _levels(self) -> tuple[Ancestor, ...]:
        name = self.dataset.split
        assert name is not None
        return ancestors_of(self.dataset.path, name, self.split)

    @property
    def digest(self) -> RecordsDigest:
        """The digest of all its records."""
        return self.table.digest()

    @functools.cached_property
    def first_records(self) -> Int64:
        """int64 [shards], number of the first record of each shard."""
        return np.cumsum(self.table.records) - self.table.records

    def sources(self, records: Int64) -> SourceNames:
        """Returns the source file of records, int64 [n] numbers in the split."""
        ends = self.first_records + self.table.records
        shards = np.searchsorted(ends, records, side="right")
        return source_names(self._levels, shards, records - self.first_records[shards])

    def records_of(self, shards: Int64) -> Int64:
        """Returns the numbers of all records of shards, in order: int64 [records]."""
        counts = self.table.records[shards]
        begins = self.first_records[shards] - (np.cumsum(counts) - counts)
        return np.repeat(begins, counts) + np.arange(counts.sum())

    def part(
        self, shards: Int64, part: int, *, parts: int, files: dict[str, int]
    ) -> RecordPart:
        """Returns the records of shards whose checksums belong to one of some parts.

        It reads the indexes of the shards.

        Args:
            shards: int64 [shards], rising.
            part: The number of the part.
            parts: How many there are.
            files: Numbers of files by their names. It gets those that it has not.
        """

        def read(shard: int) -> tuple[Int64, npt.NDArray[np.uint32]]:
            crc32cs = self._index(shard).crc32cs
            rows = np.flatnonzero(crc32cs % np.uint32(parts) == part)
            return self.first_records[shard] + rows, crc32cs[rows]

        found = [*map_all(read, shards.tolist(), at_once=_AT_ONCE)]
        numbers, crc32cs = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        names, own = self.sources(numbers)
        known = [files.setdefault(name, len(files)) for name in names]
        return RecordPart(numbers, crc32cs, np.array([*known, UNKNOWN], np.int64)[own])

    def _index(self, shard: int) -> ShardIndex:
        places = shards_of(self.dataset).index_paths
        assert places is not None
        described = ShardFacts(file_crc32c=int(self.table.file_crc32cs[shard]))
        return read_index(places[shard], described)

    def lengths(self, records: Int64) -> Int64:
        """Returns the lengths of records, int64 [n] rising numbers in the split.

        The footer of a shard has the length of a record that is alone in its chunk.
        Others are read.
        """
        lengths = np.full(len(records), -1, np.int64)
        ends = self.first_records + self.table.records
        owners = np.searchsorted(ends, records, side="right")
        shards, begins = np.unique(owners, return_index=True)
        bounds = [*begins.tolist(), len(records)]
        rows = {
            shard: slice(bounds[number], bounds[number + 1])
            for number, shard in enumerate(shards.tolist())
        }

        def fill(shard: int) -> None:
            own = records[rows[shard]] - self.first_records[shard]
            lengths[rows[shard]] = self._lone_lengths(shard, own)

        for _ in map_all(fill, rows, at_once=_AT_ONCE):
            pass
        unknown = np.flatnonzero(lengths < 0)
        for batch in self._batches(unknown):
            lengths[batch] = [*map(len, self.dataset.read(records[batch]))]
        self.records_read += len(unknown)
        return lengths

    def _lone_lengths(self, shard: int, records: Int64) -> Int64:
        """Returns the lengths of a shard's records that have a chunk each, -1 else."""
        if self._index(shard).group_size != 1:
            return np.full(len(records), -1, np.int64)
        path = shards_of(self.dataset).paths[shard]
        footer = stored_footer(path, int(self.table.file_bytes[shard]))
        return np.asarray(footer.chunk_decoded_bytes[records], np.int64)

    def _batches(self, rows: Int64) -> Iterator[Int64]:
        mean = self.split.raw_bytes // max(self.split.records, 1) + 1
        step = max(1, min(_MOST_BATCH_RECORDS, _BATCH_BYTES // mean))
        for begin in range(0, len(rows), step):
            yield rows[begin : begin + step]
