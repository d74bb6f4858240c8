"""The steps of a search for duplicates, whose runs are kept on a disk of this machine.

What each step needs of the one before is in files, so that data are larger than memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.columns import Done
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.duplicates.certificate import REMOVAL, Removals
from gristmill.dataset.storage.base import explained
from gristmill.transforms.duplicates.digest_shards import (
    DigestedShard,
    DigestTask,
    digest_pass,
)
from gristmill.transforms.duplicates.runs import (
    ENTRY,
    MOST_PARTITIONS,
    REMOVED,
    Run,
    removals_of,
    resolve,
)

_PARTITION_ENTRIES = 1 << 21
_INT64 = np.dtype("<i8")
_FENCES_BYTES = (MOST_PARTITIONS + 1) * _INT64.itemsize


class Digested(NamedTuple):
    """The shards of a task, which are digested."""

    task: DigestTask
    shards: Sequence[DigestedShard]

    @property
    def done(self) -> Done:
        """What was done."""
        read = RecordsDigest.total(shard.read for shard in self.shards)
        size = self.task.stored_bytes
        return Done("", "records digested", size, read.records, read.raw_bytes)


class Spool(NamedTuple):
    """The files of a search.

    Attributes:
        directory: Where they are.
        runs: Shard, and number in it, of each run, in order.
        partitions: Into how many parts the digests are divided: a power of two.
    """

    directory: str
    runs: Sequence[tuple[int, int]] = ()
    partitions: int = 1

    def of(self, shards: Sequence[DigestedShard]) -> Spool:
        """Returns it with the runs of all shards, in partitions that fit in memory."""
        entries = sum(shard.entries for shard in shards)
        wanted = max(-(-entries // _PARTITION_ENTRIES), 1)
        partitions = min(1 << (wanted - 1).bit_length(), MOST_PARTITIONS)
        runs = [(shard.shard, n) for shard in shards for n in range(shard.runs)]
        return Spool(self.directory, runs, partitions)

    def path(self, kind: str, *numbers: int) -> str:
        """Returns the path of a file."""
        return os.path.join(self.directory, "-".join([kind, *map(str, numbers)]))

    def keep(self, shard: int, number: int, run: Run) -> None:
        """Writes a run."""
        with explained("keep digests of records", self.directory):
            with open(self.path("entries", shard, number), "wb") as file:
                file.write(run.fences(MOST_PARTITIONS).tobytes())
                file.write(run.entries.tobytes())
            run.copies.tofile(self.path("copies", shard, number))

    def digest(self, task: DigestTask) -> Digested:
        """Digests the shards of a task."""
        return Digested(task, [*digest_pass(task, self.keep)])

    def resolve(self, partition: int) -> int:
        """Finds the entries of a partition that others stand for, and counts them."""
        step = MOST_PARTITIONS // self.partitions
        blocks = [
            _part(
                self.path("entries", *run),
                ENTRY,
                fences=(partition * step, (partition + 1) * step),
                begin_bytes=_FENCES_BYTES,
            )
            for run in self.runs
        ]
        found = resolve(blocks)
        ends = np.cumsum([0, *map(len, found)], dtype=_INT64)
        with (
            explained("keep duplicates", self.directory),
            open(self.path("resolved", partition), "wb") as file,
        ):
            file.write(ends.tobytes())
            for rows in found:
                file.write(rows.tobytes())
        return int(ends[-1])

    def join(self, number: int) -> int:
        """Writes the removals of a run, by its number among all, and counts them."""
        begin = (len(self.runs) + 1) * _INT64.itemsize
        resolved = [
            _part(
                self.path("resolved", partition),
                REMOVED,
                fences=(number, number + 1),
                begin_bytes=begin,
            )
            for partition in range(self.partitions)
        ]
        path = self.path("copies", *self.runs[number])
        removals = removals_of(np.fromfile(path, REMOVED), resolved)
        with explained("keep duplicates", self.directory):
            removals.tofile(self.path("removals", number))
        return len(removals)

    def removals(self) -> Iterator[Removals]:
        """Yields the removals of all runs, in order."""
        for number in range(len(self.runs)):
            yield np.fromfile(self.path("removals", number), REMOVAL)


def _part(
    path: str, dtype: np.dtype[Any], *, fences: tuple[int, int], begin_bytes: int
) -> np.ndarray[Any, Any]:
    """Returns the rows between two fences of a file, which begins with all of these."""
    with explained("read digests of records", path), open(path, "rb", 0) as file:
        begin, end = (
            int(np.fromfile(file, _INT64, 1, offset=fence * 8 - file.tell())[0])
            for fence in fences
        )
        file.seek(begin_bytes + begin * dtype.itemsize)
        return np.fromfile(file, dtype, end - begin)
