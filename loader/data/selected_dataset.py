"""A dataset of the records that a condition on columns selects."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.columns.expression import Expression
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.loader.base.indices import IntArray, checked_index, checked_indices
from gristmill.loader.base.state_fields import Content
from gristmill.loader.columns.column import Column
from gristmill.loader.columns.selection import Selection
from gristmill.loader.data.dataset import Dataset, reader_of, table_of
from gristmill.loader.data.shard_info import ShardInfo

_BLOCK_RECORDS = 1 << 16


class SelectedDataset(Dataset):
    """Some records of a dataset, in its order, numbered from 0.

    Args:
        whole: All records.
        selection: Which of them.
        text: The condition, for messages.
    """

    def __init__(self, whole: Dataset, selection: Selection, text: str):
        super().__init__(
            path=whole.path,
            reader=reader_of(whole),
            recipe=lambda dataset: (SelectedDataset, (whole, selection, text)),
            split=whole.split,
            table=table_of(whole),
            manifest=whole.manifest,
            parts=whole.parts,
            select=selected,
        )
        self._whole, self._selection, self._text = whole, selection, text

    def __len__(self) -> int:
        return len(self._selection)

    def __repr__(self) -> str:
        return (
            f"<Dataset {self._shards.name}, where {self._text}: {len(self):,} of "
            f"{len(self._whole):,} records>"
        )

    @property
    def edition(self) -> int | None:
        """None: a selection has no editions."""
        return None

    def as_of(self, edition: int | Sequence[int | None]) -> Dataset:
        """Returns the selection, if all its records are of this edition's state."""
        if edition == self._whole.edition:
            return self
        raise InputError(
            "a selection of another edition is asked for",
            where=repr(self),
            expected=f"edition {self._whole.edition}",
            got=f"edition {edition}",
            cure=f"open the dataset with edition={edition}, and select there",
        )

    @functools.cached_property
    def content(self) -> Content:
        """What identifies the records: those of the whole, and which of them."""
        whole, digest = self._whole.content, self._selection.digest
        names = (f"{whole.records_digest} {whole.order_digest} {n}" for n in (0, 1))
        own = [hashlib.sha256(n.encode() + digest).hexdigest()[:32] for n in names]
        return Content(None, len(self), *own)

    def begins_with(self, content: Content) -> bool:
        """Returns whether all the records are these."""
        return self.content.is_same(content)

    @property
    def mean_record_bytes(self) -> float | None:
        """That of all records, selected or not."""
        return self._whole.mean_record_bytes

    @property
    def is_packed(self) -> bool:
        """Whether the records are packed rows."""
        return self._whole.is_packed

    def packed_counts(self) -> PackedCounts | None:
        """Returns None: the tokens of single rows are not known."""
        return None

    @property
    def numbers(self) -> IntArray:
        """The numbers of its records among those of the whole: int64 [records]."""
        return self._selection.numbers(np.arange(len(self)))

    def column(self, name: str) -> Column:
        """Returns a column of the selected records; see `Dataset`."""
        return self._whole.column(name).renumbered(self._selection.numbers, len(self))

    def shard(self, index: int) -> ShardInfo:
        """Returns the facts about a shard; it counts the selected records alone."""
        info = self._whole.shard(index)
        ends = np.array([info.first_record, info.first_record + info.records])
        first, end = self._selection.ranks(ends).tolist()
        return dataclasses.replace(info, first_record=first, records=end - first)

    def number_here(self, record: int) -> int | None:
        """Returns the number of a record of the whole, None if it is not selected."""
        number = np.array([record], np.int64)
        if not self._selection.has(number)[0]:
            return None
        return int(self._selection.ranks(number)[0])

    def numbers_here(self, records: IntArray) -> IntArray:
        """Returns how many selected records come before each record of the whole."""
        return self._selection.ranks(records)

    def find(self, records: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """Returns the shard of each record, and its number in the shard."""
        checked = checked_indices(records, stop=len(self), what="record")
        return self._whole.find(self._selection.numbers(np.atleast_1d(checked)))

    def part_of(self, shard: int) -> tuple[Dataset, int]:
        """Returns the dataset that has a shard, with all its records."""
        return self._whole.part_of(shard)

    def offset_bytes(self, record: int) -> int:
        """Returns the offset, in its shard, of the chunk that holds a record."""
        checked = checked_index(record, stop=len(self), what="record")
        (number,) = self._selection.numbers(np.array([checked])).tolist()
        return self._whole.offset_bytes(number)

    def read_unchecked(self, records: IntArray, *, threads: int = 1) -> list[bytes]:
        """As `read`, of int64 [n] numbers that are known to be in range."""
        numbers = self._selection.numbers(records)
        return self._whole.read_unchecked(numbers, threads=threads)


def selected(dataset: Dataset, condition: Any) -> SelectedDataset:
    """Returns the records of a dataset that a condition selects; see `Dataset`."""
    records = len(dataset)
    if isinstance(condition, str):
        expression = Expression(condition, dataset.columns)
        blocks = _evaluated(dataset, expression)
        return SelectedDataset(dataset, Selection.of(blocks, records), condition)
    chosen = np.asarray(condition)
    if chosen.dtype != np.bool_ or chosen.shape != (records,):
        raise InputError(
            "records are selected neither by an expression nor by booleans",
            where=repr(dataset),
            expected=f"an expression, or booleans of shape ({records:,},)",
            got=f"{chosen.dtype} of shape {chosen.shape}",
            cure="give an expression such as 'score > 0.5', or a boolean array",
        )
    return SelectedDataset(dataset, Selection.of([chosen], records), "chosen by array")


def _evaluated(
    dataset: Dataset, expression: Expression
) -> Iterator[npt.NDArray[np.bool_]]:
    columns = {name: dataset.column(name) for name in expression.names}
    for begin in range(0, len(dataset), _BLOCK_RECORDS):
        rows = np.arange(begin, min(begin + _BLOCK_RECORDS, len(dataset)))
        values: Mapping[str, Any] = {n: c.read(rows) for n, c in columns.items()}
        found = expression.evaluate(values)
        yield np.broadcast_to(found, len(rows))
