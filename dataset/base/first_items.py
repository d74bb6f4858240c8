"""The first few of many items, by a key, and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Self, TypeVar

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
