"""Findings: the faults that `verify` found in a dataset, and the first few of many."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable
from typing import Any, Generic, Self, TypeVar

from gristmill.dataset.base.errors import (
    FormatVersionError,
    GristmillError,
    InvalidDatasetError,
    StorageError,
)

T = TypeVar("T")


class FirstOf(Generic[T]):
    """Counts all items that it is given, and keeps the first by their keys.

    The choice does not depend on the order in which items come. An item with the key of
    one that is kept counts as the same item, once.

    Args:
        limit: How many to keep.
        key: Returns the key of an item. Must be picklable to pickle the collection.
    """

    def __init__(self, limit: int, key: Callable[[T], Any]):
        self._limit = limit
        self._key = key
        self._items: dict[Any, T] = {}
        self._more = 0

    def add(self, items: Iterable[T], *, more: int = 0) -> Self:
        """Takes items, and a count of others that are not at hand."""
        for item in items:
            self._items.setdefault(self._key(item), item)
            # Sorted once for many items: doing so for each would take hours at a
            # million shards.
            if len(self._items) >= 2 * self._limit:
                self._drop()
        self._more += more
        return self

    def merge(self, other: FirstOf[T]) -> Self:
        """Takes the items of another collection."""
        return self.add(other._items.values(), more=other._more)

    @property
    def first(self) -> tuple[T, ...]:
        """The first items, in order."""
        self._drop()
        return tuple(self._items.values())

    @property
    def more(self) -> int:
        """Number of the items that are not kept."""
        self._drop()
        return self._more

    def __len__(self) -> int:
        return len(self._items) + self._more

    def _drop(self) -> None:
        kept = sorted(self._items)[: self._limit]
        self._more += len(self._items) - len(kept)
        self._items = {key: self._items[key] for key in kept}


# How many are kept for a dataset: a few megabytes. The others are counted.
_FINDINGS_KEPT = 10_000

# Errors of reading metadata that become findings.
UNREADABLE = (InvalidDatasetError, FormatVersionError, StorageError)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a dataset.

    Attributes:
        path: The file, relative to the dataset.
        what: What is wrong, with the record where one is concerned.
        expected: What should be there, or "" if that is not known.
        got: What is there, or "" if that is not known.
    """

    path: str
    what: str
    expected: str = ""
    got: str = ""

    def __str__(self) -> str:
        facts = [
            f"{label} {fact}"
            for label, fact in (("expected", self.expected), ("got", self.got))
            if fact
        ]
        return f"{self.path}: {self.what}" + (f" ({', '.join(facts)})" if facts else "")


class Findings(FirstOf[Finding]):
    """Any number of findings: all are counted, and the first by file are kept."""

    def __init__(self) -> None:
        super().__init__(_FINDINGS_KEPT, operator.attrgetter("path", "what"))

    @property
    def summary(self) -> str:
        """The first finding, and how many more there are. There has to be one."""
        more = len(self) - 1
        return f"{self.first[0]}" + (f", and {more:,} more" if more else "")


def wrong_size(path: str, expected: int, got: int, *, what: str = "shard") -> Finding:
    """Returns the finding for a shard, or another file, of the wrong size."""
    return Finding(
        path, f"{what} has the wrong size", f"{expected:,} bytes", f"{got:,}"
    )


def finding_of(path: str, error: GristmillError) -> Finding:
    """Returns an error about a file of a dataset as a finding."""
    return Finding(path, error.what, expected=error.expected or "", got=error.got or "")
