"""The values of a shard, from the rows that its records match."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.columns import Done
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.commit.attached_split import (
    ShardTask,
    Written,
    write_values,
)
from gristmill.loader import Dataset
from gristmill.loader import open as open_dataset
from gristmill.pipelines.columns.row_store import is_key, key_numbers, row_store
from gristmill.pipelines.columns.table_files import BLOCK_RECORDS, features_of

_SHOWN = 20


class Matched(NamedTuple):
    """The result of matching a shard's records to rows.

    Attributes:
        task: The shard.
        found: Number of records that have a row with all values.
        missing: Number and key of the first other records.
    """

    task: ShardTask
    found: int
    missing: Sequence[tuple[int, str]]

    @property
    def done(self) -> Done:
        """The work done, for progress and metrics."""
        return Written(self.task, {}).done


@functools.lru_cache(maxsize=2)
def _opened(attachment: tuple[str, str, int]) -> Dataset:
    dataset, split, edition = attachment
    return open_dataset(dataset, split, edition=edition)


def _records(task: ShardTask, begin: int) -> list[bytes]:
    """Returns a block of a shard's records, from a record of the split on."""
    at = task.attachment
    opened = _opened((at.write.output, at.write.split, max(at.editions)))
    end = min(begin + BLOCK_RECORDS, task.stop_record)
    return opened.stored.read(np.arange(begin, end))


def _rows_path(directory: str, task: ShardTask) -> str:
    return os.path.join(directory, f"found-{task.edition}-{task.number}.npy")


def match_shard(
    task: ShardTask, *, directory: str, key: str | None, texts: bool, last: bool
) -> Matched:
    """Finds the rows of a shard's records, and keeps their numbers in the directory.

    Args:
        task: The shard.
        directory: The directory of the rows.
        key: The feature with the key; None to join by the number of the record.
        texts: Whether the keys of the rows are texts.
        last: Whether to take the last of several rows with a key, not the first.
    """
    store = row_store(directory, last)
    found = np.empty(task.digest.records, np.int64)
    missing: list[tuple[int, str]] = []
    for begin in range(task.first_record, task.stop_record, BLOCK_RECORDS):
        end = min(begin + BLOCK_RECORDS, task.stop_record)
        own = slice(begin - task.first_record, end - task.first_record)
        keys: Sequence[Any] = range(begin, end)
        if key is None:
            rows = store.find(np.arange(begin, end))
        else:
            where = f"{task.attachment.write.output}, record {begin:,}"
            given = features_of(_records(task, begin), [key], where=where)[key]
            rows = np.full(end - begin, -1, np.int64)
            there = ~given.missing
            keys = [
                value if has else "none"
                for value, has in zip(given.values, there, strict=True)
            ]
            if given.kind is not None and there.any():
                _check_kind(key, given.kind, texts=texts, where=where)
                numbers = key_numbers(given.kind, given.values[there])
                rows[there] = store.find(numbers)
        found[own] = rows
        lost = np.flatnonzero(store.lost(rows))
        shown = lost[: _SHOWN - len(missing)].tolist()
        missing += [(begin + row, str(keys[row])) for row in shown]
    np.save(_rows_path(directory, task), found)
    return Matched(task, int((~store.lost(found)).sum()), missing)


def _check_kind(key: str, kind: ColumnType, *, texts: bool, where: str) -> None:
    if is_key(kind) and kind.is_text == texts:
        return
    raise InputError(
        f"the feature {key!r} is not of the type of the rows' keys",
        where=where,
        expected="texts" if texts else "integers",
        got=kind,
        cure="join by another feature, or write the keys of the rows with its type",
    )


def write_joined(
    task: ShardTask, *, directory: str, fill: Mapping[str, Any], last: bool
) -> Written:
    """Writes the values of a shard, from the rows that `match_shard` found.

    Args:
        task: The shard.
        directory: The directory of the rows.
        fill: Values for records without one, by column.
        last: As in `match_shard`.
    """
    store, rows = row_store(directory, last), np.load(_rows_path(directory, task))
    values = {
        name: (kind, store.values(name, rows, fill.get(name)))
        for name, kind in store.kinds.items()
    }
    return write_values(task, values)
