"""The shards of several datasets, one after the other, as those of one dataset.

Each shard is still opened by the list that it comes from, which compares it with the
description of its own dataset.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from gristmill.dataset.base.errors import InputError, InvalidDatasetError, some_of
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.loader.reading.shard_file import ShardFile
from gristmill.loader.reading.shard_list import (
    NOT_CACHED,
    CacheCounter,
    CacheCounts,
    ShardList,
    StoredShards,
)
from gristmill.loader.remote.range_fetcher import RangeFetcher


class _Paths(Sequence[str]):
    """The paths of all parts, each made when it is used."""

    def __init__(self, parts: Parts, paths: Sequence[Sequence[str]]):
        self._parts, self._paths = parts, paths

    def __len__(self) -> int:
        return self._parts.shards

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        part, number = self._parts.find(range(len(self))[index])
        return self._paths[part][number]


class Parts:
    """Which shards each part has."""

    def __init__(self, counts: Sequence[int]):
        self._firsts = list(itertools.accumulate(counts, initial=0))

    @property
    def shards(self) -> int:
        """Number of all shards."""
        return self._firsts[-1]

    def first(self, part: int) -> int:
        """Returns the number of a part's first shard among all."""
        return self._firsts[part]

    def find(self, shard: int) -> tuple[int, int]:
        """Returns the part that has a shard, and the shard's number there."""
        part = bisect.bisect_right(self._firsts, shard) - 1
        return part, shard - self._firsts[part]

    def divided(self, shards: Sequence[int]) -> dict[int, list[int]]:
        """Returns, by part, which of some shards it has, by their places here."""
        places: dict[int, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(self.find(shard)[0], []).append(place)
        return places


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinedShards(ShardList):
    """The shards of several lists.

    Attributes:
        lists: The lists, in order.
        parts: Which shards each has.
    """

    lists: tuple[ShardList, ...]
    parts: Parts

    @classmethod
    def of(cls, lists: Sequence[ShardList]) -> Self:
        """Joins lists of shards, one or more.

        Raises:
            InputError: Some are read from object storage by their tables, others not.
            InvalidDatasetError: Together they have too many records.
        """
        parts = Parts([len(one.paths) for one in lists])
        remotes = [one.remote for one in lists if one.remote is not None]
        if 0 < len(remotes) < len(lists):
            raise InputError(
                "datasets in a bucket are not joined with others",
                got=some_of([one.name for one in lists]),
                cure="copy them to one place, or make a mixture of them",
            )
        sizes = [one.records for one in lists]
        if sum(sizes) > 1 << 62:
            raise InvalidDatasetError(
                "the datasets together have more than 2^62 records by their own count",
                where=some_of([one.name for one in lists]),
                cure="restore them from copies, or convert them again",
            )
        before = itertools.accumulate(sizes, initial=0)
        ends = [one.ends + first for one, first in zip(lists, before, strict=False)]
        return cls(
            paths=_Paths(parts, [one.paths for one in lists]),
            starts=np.concatenate([one.starts for one in lists]),
            ends=np.concatenate(ends),
            file_records=np.concatenate([one.file_records for one in lists]),
            file_bytes=np.concatenate([one.file_bytes for one in lists]),
            name=" + ".join(one.name for one in lists),
            remote=_JoinedStorage(remotes, parts) if remotes else None,
            lists=tuple(lists),
            parts=parts,
        )

    def open(self, shards: Sequence[int]) -> list[ShardFile]:
        """See `ShardList`."""
        opened: dict[int, ShardFile] = {}
        for part, places in self.parts.divided(shards).items():
            first = self.parts.first(part)
            files = self.lists[part].open([shards[place] - first for place in places])
            for place, file in zip(places, files, strict=True):
                opened[place] = _numbered(file, first)
        return [opened[place] for place in range(len(shards))]


class _JoinedStorage:
    """The shards of several datasets in object storage."""

    def __init__(self, storages: Sequence[StoredShards], parts: Parts):
        self._storages, self._parts = storages, parts
        # One fetcher for all, which limits and counts the requests of all.
        self.fetcher: RangeFetcher = storages[0].fetcher
        for storage in storages:
            storage.fetcher = self.fetcher
        self.counter: CacheCounter = _JoinedCounter(
            [storage.counter for storage in storages]
        )

    def open(self, shards: Sequence[int]) -> list[ShardFile]:
        raise NotImplementedError("JoinedShards opens the shards of each part")

    def copy(self, shard: int, index: ShardIndex) -> ShardFile | None:
        part, number = self._parts.find(shard)
        found = self._storages[part].copy(number, index)
        return None if found is None else _numbered(found, self._parts.first(part))

    def delete_copy(self, shard: int) -> None:
        part, number = self._parts.find(shard)
        self._storages[part].delete_copy(number)

    def count_records(
        self, *, copied: Mapping[int, int], fetched: Mapping[int, int]
    ) -> None:
        counts: dict[int, tuple[dict[int, int], dict[int, int]]] = {}
        for kind, records in enumerate((copied, fetched)):
            for shard, count in records.items():
                part, number = self._parts.find(shard)
                counts.setdefault(part, ({}, {}))[kind][number] = count
        for part, (read, missed) in counts.items():
            self._storages[part].count_records(copied=read, fetched=missed)


class _JoinedCounter(CacheCounter):
    """The sums of several counters."""

    def __init__(self, counters: Sequence[CacheCounter]):
        self._counters = counters

    @property
    def counts(self) -> CacheCounts:  # type: ignore[override]
        return sum((one.counts for one in self._counters), NOT_CACHED)

    def take(self) -> CacheCounts:
        return sum((one.take() for one in self._counters), NOT_CACHED)


def _numbered(file: ShardFile, first: int) -> ShardFile:
    """Returns a shard with its number among those of all parts."""
    if file.number is None or not first:
        return file
    return dataclasses.replace(file, number=first + file.number)
