"""Grain pipelines that read many records at a time.

Grain's `MapDataset` can pass a list of indices down to its source, through shuffles,
epochs and slices for hosts. But neither `to_iter_dataset` nor, in current versions of
Grain, `batch` uses it: they request single elements, from many threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grain

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import checked_count


class _InBatches(grain.MapDataset):  # type: ignore[misc]  # Grain has no types.
    """Lists of `records` consecutive elements; the last of an epoch may be shorter.

    `nones` keeps a place for each element that was filtered out.
    """

    def __init__(self, parent: grain.MapDataset, records: int, *, nones: bool = False):
        super().__init__(parent)
        self._records, self._nones = records, nones

    def __len__(self) -> int:
        return -(-len(self._parent) // self._records)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        epoch, batch = divmod(index, len(self))
        size = len(self._parent)
        first, stop = batch * self._records, min((batch + 1) * self._records, size)
        indices = range(epoch * size + first, epoch * size + stop)
        elements = self._parent._getitems(list(indices))
        if self._nones:
            return elements
        return [element for element in elements if element is not None]

    def __str__(self) -> str:
        return f"InBatches(records={self._records})"


class _ReadTogether(grain.IterDataset):  # type: ignore[misc]
    """The elements of a MapDataset one by one, as its `to_iter_dataset` gives them."""

    def __init__(
        self, parent: grain.MapDataset, records: int, options: grain.ReadOptions
    ):
        super().__init__(parent)
        self._records, self._options = records, options

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Leaves the elements of one worker of `mp_prefetch`; Grain calls it there."""
        theirs = self._parent.to_iter_dataset()
        theirs.set_slice(sl, sequential_slice)
        self._parents = theirs.parents

    def __iter__(self) -> _TogetherIterator:
        lists = _InBatches(self._parent, self._records, nones=True)
        parent = lists.to_iter_dataset(self._options).__iter__()
        return _TogetherIterator(parent, len(self._parent), self._records)

    def __str__(self) -> str:
        return f"ReadTogether(records={self._records})"


class _TogetherIterator(grain.DatasetIterator):  # type: ignore[misc]
    """The elements of lists, with the state that Grain has for the elements.

    Grain's state counts elements, also those that were filtered out. So the pipeline
    that wrote a checkpoint and the one that continues may be of either kind.
    """

    def __init__(self, parent: grain.DatasetIterator, size: int, records: int):
        super().__init__(parent)
        self._size, self._records = size, records
        self._next_index = 0
        # The elements from this index on.
        self._first, self._list = 0, list[Any]()

    def __next__(self) -> Any:
        while True:
            place = self._next_index - self._first
            if not 0 <= place < len(self._list):
                self._read_list()
                continue
            self._next_index += 1
            element = self._list[place]
            if element is not None:
                return element

    def _read_list(self) -> None:
        if self._next_index >= self._size:
            raise StopIteration
        number = self._next_index // self._records
        self._list, self._first = [], number * self._records
        # It is elsewhere if Ctrl-C came after it gave a list, before the list was kept.
        if self._parent.get_state() != {"next_index": number}:
            self._parent.set_state({"next_index": number})
        self._list = next(self._parent)

    def get_state(self) -> dict[str, int]:
        return {"next_index": self._next_index}

    def set_state(self, state: Mapping[str, int]) -> None:
        if not isinstance(state, Mapping) or state.keys() != {"next_index"}:
            raise InputError(
                "not the state of this part of a Grain pipeline",
                expected="{'next_index': ...}, of read_together or to_iter_dataset",
                got=f"{state!r:.200}",
                cure="resume with the pipeline that wrote the checkpoint, or start "
                "without it",
            )
        self._set_next_index(state["next_index"])

    def _get_next_index(self) -> int:
        return self._next_index

    def _set_next_index(self, index: int) -> None:
        index = checked_count(index, what="next_index", least=0, most=self._size)
        self._parent.set_state({"next_index": index // self._records})
        self._next_index = index

    def __str__(self) -> str:
        return f"ReadTogetherIterator(records={self._records})"


def in_batches(dataset: grain.MapDataset, *, records: int) -> grain.MapDataset:
    """Returns a dataset's elements in lists; the elements of a list are read at once.

    It is `dataset.batch(records, batch_fn=list)`, and faster on a source that reads
    batches, such as `loader.ArrayRecordDataSource`. Put it before decoding.

    Args:
        dataset: A Grain MapDataset.
        records: Elements of a list. The last list of an epoch may be shorter.
    """
    _check_kind(dataset, grain.MapDataset, "a MapDataset, before to_iter_dataset")
    return _InBatches(dataset, checked_count(records, what="records"))


def read_together(
    dataset: grain.MapDataset,
    *,
    records: int = 256,
    read_options: grain.ReadOptions | None = None,
) -> grain.IterDataset:
    """Returns a dataset's elements one by one, read many at a time.

    It is `dataset.to_iter_dataset(read_options)`, with the same elements in the same
    order and the same state, and faster on a source that reads batches. A pipeline
    with one continues from a checkpoint of the same pipeline with the other.

    Args:
        dataset: A Grain MapDataset.
        records: Elements to read at a time.
        read_options: How many threads read, and how many lists they read ahead; two
            and four by default.
    """
    _check_kind(dataset, grain.MapDataset, "a MapDataset, before to_iter_dataset")
    if read_options is not None:
        _check_kind(read_options, grain.ReadOptions, "grain.ReadOptions(...), or None")
    else:
        read_options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    return _ReadTogether(dataset, checked_count(records, what="records"), read_options)


def _check_kind(value: object, kind: type, expected: str) -> None:
    if not isinstance(value, kind):
        raise InputError(
            "not a part of a Grain pipeline",
            expected=expected,
            got=f"{type(value).__name__} {value!r:.100}",
            cure="give a dataset of Grain, as the function expects",
        )
