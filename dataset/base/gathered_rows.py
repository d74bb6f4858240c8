"""Rows from many workers, gathered in any order as compressed columns."""

from __future__ import annotations

import abc
import copy
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

_BLOCK_ROWS = 4096
_FEW_ROWS = 64

Row = TypeVar("Row")


class RowCollector(abc.ABC, Generic[Row]):
    """Collects objects in any order as compressed columns, and pickles compactly.

    Args:
        block_rows: How many objects are compressed together.
    """

    def __init__(self, *, block_rows: int = _BLOCK_ROWS):
        self._block_rows = block_rows
        self._pending: list[Row] = []
        self._blocks: list[bytes] = []

    @abc.abstractmethod
    def _encode(self, rows: Sequence[Row]) -> bytes:
        """Returns objects as compressed columns."""

    def add(self, row: Row) -> None:
        """Adds an object. A later one of the same number replaces it."""
        self._pending.append(row)
        if len(self._pending) >= self._block_rows:
            self._pack()

    def extend(self, other: Self) -> None:
        """Adds the objects of another collector, in no certain order."""
        self._blocks += other._blocks
        for row in other._pending:
            self.add(row)

    def emptied(self) -> Self:
        """Returns a collector of the same kind without objects."""
        other = copy.copy(self)
        other._pending, other._blocks = [], []
        return other

    def _packed(self) -> list[bytes]:
        """Returns all objects as blocks of columns."""
        self._pack()
        return self._blocks

    def _pack(self) -> None:
        if self._pending:
            self._blocks.append(self._encode(self._pending))
            self._pending = []

    def __getstate__(self) -> dict[str, Any]:
        # Those of a bundle of few: as columns these would take more, and longer.
        if len(self._pending) >= _FEW_ROWS:
            self._pack()
        return self.__dict__


def last_of_each(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the row of the last occurrence of each number, by number."""
    found: npt.NDArray[np.int64] = np.unique(numbers[::-1], return_index=True)[1]
    return len(numbers) - 1 - found


class Gatherable(Protocol):
    """A small result of a worker, which knows what is kept of it."""

    def gather(self, gathered: Gathered) -> None:
        """Adds what is kept of it."""


class Gathered:
    """Results of any number of workers. Adds up in any order, and pickles compactly.

    Attributes:
        rows: Rows as columns, by the part of the job that they belong to.
        notes: Single values, by kind, then by key. One of each is kept.
    """

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.notes: defaultdict[str, dict[Any, Any]] = defaultdict(dict)

    @classmethod
    def of(cls, results: Iterable[Gatherable]) -> Self:
        """Gathers results."""
        gathered = cls()
        for result in results:
            gathered.add(result)
        return gathered

    def add(self, result: Gatherable) -> None:
        """Takes a result."""
        result.gather(self)

    def add_row(
        self, part: Hashable, row: Row, empty: Callable[[], RowCollector[Row]]
    ) -> None:
        """Takes a row.

        Args:
            part: The part of the job that it belongs to.
            row: The row.
            empty: Returns a collector for the first row of a part.
        """
        if part not in self.rows:
            self.rows[part] = empty()
        self.rows[part].add(row)

    def extend(self, other: Gathered) -> None:
        """Takes all results of another collection."""
        for part, rows in other.rows.items():
            self.rows.setdefault(part, rows.emptied()).extend(rows)
        for kind, notes in other.notes.items():
            self.notes[kind] |= notes
