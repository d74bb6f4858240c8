"""The columns beside the records of batches, read with them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.loader.columns.column import Column
from gristmill.loader.data.batches import Batches
from gristmill.loader.order.step_records import MixedBatch, by_dataset

Values = npt.NDArray[Any]


class BatchColumns:
    """Reads the columns of batches. Safe to share by threads; opens them when it reads.

    Args:
        batches: The batches.
        names: The columns.
    """

    def __init__(self, batches: Batches, names: Sequence[str]):
        self.names = tuple(names)
        self._batches = batches
        self._column = functools.lru_cache(maxsize=64)(self._opened)

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchColumns, (self._batches, self.names)

    def _opened(self, number: int, name: str) -> Column:
        return self._batches.datasets[number].column(name)

    def read(self, batch: MixedBatch) -> dict[str, Values]:
        """Returns the values of a batch's records, each `[rows, *shape]`, by name."""
        return {name: self._values(name, batch) for name in self.names}

    def _values(self, name: str, batch: MixedBatch) -> Values:
        parts = by_dataset(batch.datasets)
        first = int(batch.datasets[0]) if len(batch.datasets) else 0
        out = self._column(first, name).kind.empty(len(batch.records))
        for number, rows in parts:
            out[rows] = self._column(number, name).read(batch.records[rows])
        return out


def checked_columns(
    columns: Sequence[str], batches: Batches, decode: object
) -> tuple[str, ...]:
    """Returns the names of columns that a feed adds to its batches.

    Raises:
        InputError: They are not names, a dataset of the batches lacks one or has it
            with another type than the others, there is no dict to add them to, or
            decode asks for columns and there are none.
    """
    names = () if isinstance(columns, str) else tuple(columns)
    if not names and takes_columns(decode):
        raise InputError(
            "decode has a parameter `columns`, and the feed has no columns",
            where=repr(decode),
            expected="names of columns beside the records",
            got=f"columns={columns!r:.100}",
            cure='give the feed a list, such as columns=["score"]',
        )
    if isinstance(columns, str) or not all(isinstance(name, str) for name in names):
        raise InputError(
            "columns are not a list of names",
            got=f"columns={columns!r:.100}",
            cure='give a list, such as columns=["score"]',
        )
    if names and decode is None:
        raise InputError(
            "columns are arrays beside others, and the feed makes no arrays",
            got=f"columns={[*names]} without decode",
            cure="give the feed a decode that returns a dict of arrays",
        )
    for name in names:
        kinds = {str(dataset.column(name).kind) for dataset in batches.datasets}
        if len(kinds) > 1:
            raise InputError(
                f"the datasets of the mixture have the column {name!r} with other "
                "types",
                got=", ".join(sorted(kinds)),
                cure="attach it again with one type for all",
            )
    return names


def takes_columns(decode: object) -> bool:
    """Returns whether a decode function is called with the columns of its records.

    It is if it has a parameter `columns` without a default.
    """
    if not callable(decode):
        return False
    try:
        wanted = inspect.signature(decode).parameters.get("columns")
    except (TypeError, ValueError):  # Some that are compiled do not tell.
        return False
    return wanted is not None and wanted.default is wanted.empty


def with_columns(batch: Any, columns: Mapping[str, Values]) -> Any:
    """Adds columns to what decode returned of their records.

    Raises:
        InputError: It is not a dict of arrays, or has an array of such a name.
    """
    if not columns:
        return batch
    taken = sorted(columns.keys() & batch) if isinstance(batch, Mapping) else []
    if isinstance(batch, Mapping) and not taken:
        return {**batch, **columns}
    raise InputError(
        "decode did not return a dict that columns can be added to",
        expected=f"a dict of arrays, without {', '.join(columns)}",
        got=f"a dict with {', '.join(taken)}" if taken else type(batch).__name__,
        cure="let decode return a dict of arrays, or give it a parameter `columns`; "
        "PackedRows leaves an array out with names={NAME: None}",
    )
