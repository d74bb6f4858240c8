"""The values of a shard: of the rows that its records match, or of a function."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import InputError, UserFunctionError
from gristmill.dataset.columns.column_file import encode_column
from gristmill.dataset.columns.column_type import ColumnType
from gristmill.dataset.commit.attachment import Attachment
from gristmill.dataset.metadata.column_table import StoredColumn
from gristmill.loader import Dataset
from gristmill.loader import open as open_dataset
from gristmill.pipelines.columns.row_store import is_key, key_numbers, row_store
from gristmill.pipelines.columns.table_files import BLOCK_RECORDS, features_of
from gristmill.pipelines.columns.typed_values import kind_of, of_python
from gristmill.transforms.functions.user_functions import call_on_record, load_function

Values = npt.NDArray[Any]
_SHOWN = 20
_CURE = "fix the function, and run the same command again"


class ShardTask(NamedTuple):
    """A shard whose records get values.

    Attributes:
        attachment: The columns that are attached.
        shard: Its path, relative to the dataset.
        edition: The number of its edition.
        number: Its number in the edition.
        first_record: Number, in the split, of its first record.
        digest: The digest of its records.
        file_bytes: Its size.
    """

    attachment: Attachment
    shard: str
    edition: int
    number: int
    first_record: int
    digest: RecordsDigest
    file_bytes: int

    @property
    def stop_record(self) -> int:
        """Number, in the split, of the record after its last."""
        return self.first_record + self.digest.records


class Matched(NamedTuple):
    """The rows of a shard's records were looked for.

    Attributes:
        task: The shard.
        found: How many records have a row with all values.
        missing: The first of the others: number, and key.
    """

    task: ShardTask
    found: int
    missing: Sequence[tuple[int, str]]


class Written(NamedTuple):
    """The values of a shard were written.

    Attributes:
        task: The shard.
        files: The file of each column.
    """

    task: ShardTask
    files: Mapping[str, StoredColumn]


@functools.lru_cache(maxsize=2)
def _opened(attachment: tuple[str, str, int]) -> Dataset:
    dataset, split, edition = attachment
    return open_dataset(dataset, split, edition=edition)


def _records(task: ShardTask, begin: int) -> list[bytes]:
    """Returns some records of a shard, from one of the split on."""
    at = task.attachment
    opened = _opened((at.dataset, at.split, max(at.editions)))
    end = min(begin + BLOCK_RECORDS, task.stop_record)
    return opened.read_unchecked(np.arange(begin, end))


def _rows_path(directory: str, task: ShardTask) -> str:
    return os.path.join(directory, f"found-{task.edition}-{task.number}.npy")


def match_shard(
    task: ShardTask, *, directory: str, key: str | None, texts: bool, last: bool
) -> Matched:
    """Finds the rows of a shard's records, and keeps their numbers in the directory.

    Args:
        task: The shard.
        directory: That of the rows.
        key: The feature with the key; None to join by the number of the record.
        texts: Whether the keys of the rows are texts.
        last: Whether the last of several rows with a key is taken.
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
            where = f"{task.attachment.dataset}, record {begin:,}"
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
    """Writes the values of a shard, of the rows that `match_shard` has found.

    Args:
        task: The shard.
        directory: That of the rows.
        fill: What records without a value get, by column.
        last: As in `match_shard`.
    """
    store, rows = row_store(directory, last), np.load(_rows_path(directory, task))
    values = {
        name: (kind, store.values(name, rows, fill.get(name)))
        for name, kind in store.kinds.items()
    }
    return _write(task, values)


def _write(task: ShardTask, values: Mapping[str, tuple[ColumnType, Values]]) -> Written:
    files = {}
    for name, (kind, column) in values.items():
        data = encode_column(kind, column, task.digest)
        files[name] = task.attachment.publish(task.shard, name, data)
    return Written(task, files)


def kinds_of_function(spec: str, record: bytes) -> dict[str, ColumnType]:
    """Returns the columns that a function computes, by its result for a record.

    Raises:
        UserFunctionError: It failed, or returned something else.
    """
    found = _called(load_function(spec), record, "record 0")
    kinds = {}
    for name, value in found.items():
        try:
            kinds[name] = kind_of(value)
        except ValueError as e:
            raise UserFunctionError(
                f"the --map function returned no value of a column for {name!r}",
                where=spec,
                expected="a number, True or False, a text, or an array of numbers",
                got=str(e),
                cure=_CURE,
            ) from e
    return kinds


def _called(function: Any, record: bytes, source: str) -> dict[str, Any]:
    found = call_on_record(function, record, source=source, cure=_CURE)
    if isinstance(found, dict) and found and all(isinstance(n, str) for n in found):
        return found
    raise UserFunctionError(
        "the --map function returned no columns",
        where=source,
        expected="a dict with a value for each name of a column",
        got=f"{found!r:.200}",
        cure=_CURE,
    )


def write_computed(
    task: ShardTask, *, function: str, kinds: Mapping[str, ColumnType]
) -> Written:
    """Writes the values of a shard that a function computes from its records.

    Args:
        task: The shard.
        function: `module:function`, which returns the values of a record by column.
        kinds: The columns, as it returns them for the first record.

    Raises:
        UserFunctionError: It failed, or returned something else.
    """
    run = load_function(function)
    values: dict[str, list[Any]] = {name: [] for name in kinds}
    for begin in range(task.first_record, task.stop_record, BLOCK_RECORDS):
        for number, record in enumerate(_records(task, begin), begin):
            found = _called(run, record, f"record {number:,}")
            if found.keys() != kinds.keys():
                raise UserFunctionError(
                    "the --map function returned other columns than before",
                    where=f"{function}, record {number:,}",
                    expected=", ".join(kinds),
                    got=", ".join(found),
                    cure=_CURE,
                )
            for name, value in found.items():
                values[name].append(value)
    typed = {}
    for name, kind in kinds.items():
        try:
            typed[name] = kind, of_python(kind, values[name])
        except ValueError as e:
            row, got = e.args
            raise UserFunctionError(
                f"the --map function returned values of several types for {name!r}",
                where=f"{function}, record {task.first_record + row:,}",
                expected=f"{kind}, as for the first record",
                got=got,
                cure="return values of one type, such as float(...) for all",
            ) from e
    return _write(task, typed)
