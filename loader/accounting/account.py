"""The documents and tokens that a run has seen, by their source or by a column.

A record that is not a packed row is a document, and its tokens are not known. A
document of packed rows is seen with its first token, and each token with its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.data.batches import Batches, dataset_numbers
from gristmill.loader.data.column import Column
from gristmill.loader.data.dataset import Dataset, GoneDataset
from gristmill.loader.data.part import Part
from gristmill.loader.order.schedule import Passed
from gristmill.loader.provenance.stored_sources import (
    PackedShard,
    packed_of,
    stored_sources,
)

SOURCE, DATASET = "source", "dataset"
UNKNOWN = "the source was not kept"
GONE = "the edition is not there any more"
NAN = "not a number"
_MOST_VALUES = 1_000_000
_BLOCK_ROWS = 1 << 10

Key: TypeAlias = tuple[Any, str | None]
"""A source or a value, and a note where it is not known."""


class Counts(NamedTuple):
    """Numbers of documents and tokens; the `different_` ones count each once.

    Tokens are None where they are not known.
    """

    documents: int = 0
    different_documents: int = 0
    tokens: int | None = 0
    different_tokens: int | None = 0

    def plus(self, other: Counts) -> Counts:
        """Returns the sum; a field that is None in either is None."""
        pairs: Any = zip(self, other, strict=True)
        sums: list[Any] = [None if None in pair else sum(pair) for pair in pairs]
        return Counts(*sums)


class SeenPart(NamedTuple):
    """The documents and tokens seen of one source, or with one value of a column.

    Attributes:
        dataset: The dataset's name in a mixture, its path otherwise; with the edition,
            if the run saw several.
        value: The source file, or the value of the column.
        note: Why the value is not known; None if it is.
        counts: How much was seen.
    """

    dataset: str
    value: Any
    note: str | None
    counts: Counts


def account(
    batches: Batches, steps: int, *, by: str = SOURCE, tokens: bool = True
) -> list[SeenPart]:
    """Returns the documents and tokens of the first steps of a run, by dataset.

    The parts of a dataset are in the order of its sources, or, by a column, with the
    most documents first. It takes a byte of memory for each record and phase with an
    unfinished epoch.

    Args:
        batches: The batches of the run.
        steps: How many steps.
        by: `source`, `dataset`, or the name of a column; `column:NAME` for a column of
            one of these names.
        tokens: Whether to count tokens too. This reads the heads of packed rows of
            shards that hold documents of several parts, or were not seen as a whole.

    Raises:
        InputError: There are fewer steps; or the column is missing, holds arrays or has
            more than a million values.
        InvalidDatasetError: What is read is damaged.
    """
    schedule, found = batches.schedule, []
    steps = checked_count(steps, what="steps", least=0, most=schedule.step_limit)
    passed = [*schedule.passed(min(schedule.start(steps), schedule.stop))]
    for name, dataset, numbers in _accounted(batches):
        own = [one for one in passed if one.number in numbers]
        totals: dict[Key, Counts] = {}
        for key, counts in _Seen(dataset, own, by, tokens=tokens).parts():
            totals[key] = totals.get(key, Counts()).plus(counts)
            if len(totals) > _MOST_VALUES and by != SOURCE:
                raise InputError(
                    "the column has too many values to count each",
                    where=by,
                    expected=f"at most {_MOST_VALUES:,} values",
                    cure="attach a column with fewer, such as rounded scores",
                )
        ordered = [SeenPart(name, *key, counts) for key, counts in totals.items()]
        if by not in (SOURCE, DATASET):
            ordered.sort(key=lambda part: -part.counts.documents)
        found += ordered
    return found


def _accounted(batches: Batches) -> Iterator[tuple[str, Dataset, list[int]]]:
    """Yields the datasets to count, with the numbers of editions that each contains."""
    for name in dict.fromkeys(batches.names) or [None]:
        left, told = dataset_numbers(batches, name), []
        while left:
            dataset = batches.datasets[left[0]]
            held = [
                n
                for n in left
                if n == left[0]
                or dataset.stored.begins_with(batches.datasets[n].stored.content)
            ]
            left = [n for n in left if n not in held]
            told.append((dataset, held))
        for dataset, held in told[::-1]:
            label = dataset.path if name is None else name
            edition = dataset.stored.edition
            if len(told) > 1 and edition is not None:
                label += f", edition {edition}"
            yield label, dataset, held


class _Seen:
    """The records of a dataset that a run has seen, in whole and in running epochs."""

    def __init__(
        self, dataset: Dataset, passed: Sequence[Passed], by: str, *, tokens: bool
    ):
        self._dataset, self._by, self._tokens = dataset, by, tokens
        self._epochs = [(one.order.num_records, one.epochs) for one in passed]
        self._running = []
        for one in passed:
            if not one.places % one.order.num_records:
                continue
            seen = np.zeros(one.order.num_records, bool)
            for records in one.order.running_epoch(one.places):
                seen[records] = True
            self._running.append(seen)

    def parts(self) -> Iterator[tuple[Key, Counts]]:
        """Yields counts by key; the counts of a key may come in several parts."""
        dataset = self._dataset
        if isinstance(dataset, GoneDataset):
            times = self._times(0, len(dataset))
            yield from _counted([(None, GONE)], np.zeros_like(times), times)
            return
        if self._by not in (SOURCE, DATASET):
            self._column()  # A missing column is an error even if nothing was seen.
        stored = dataset.stored
        for shard in range(len(stored.shards)):
            part, own = stored.part_of(shard)
            ends = stored.shards.first_record(shard), int(stored.shards.ends[shard])
            begin, end = stored.counts_before(np.array(ends)).tolist()
            records, times = np.arange(begin, end), self._times(begin, end)
            if not times.any():
                continue
            rows = dataset.find(records)[1]
            if packed_of(part, own) is not None:
                yield from self._packed(shard, records, rows, times)
            elif self._by == SOURCE:
                keys, classes = _sources(part, own, rows)
                yield from _counted(keys, classes, times)
            else:
                records, times = records[times > 0], times[times > 0]
                yield from _counted(*self._classes(records), times)

    def _times(self, begin: int, end: int) -> IntArray:
        """Returns how often each record of a range was seen: int64 [records]."""
        times = np.zeros(end - begin, np.int64)
        for records, epochs in self._epochs:
            times[: max(records - begin, 0)] += epochs
        for seen in self._running:
            own = seen[begin:end]
            times[: len(own)] += own
        return times

    def _packed(
        self, shard: int, records: IntArray, rows: IntArray, seen: IntArray
    ) -> Iterator[tuple[Key, Counts]]:
        """Yields the counts of a shard of packed rows."""
        stored = self._dataset.stored
        part, own = stored.part_of(shard)
        opened = PackedShard(stored, shard)
        segments = opened.segments
        times = np.zeros(len(segments.row_ends), np.int64)
        times[rows] = seen
        row_of = np.repeat(np.arange(len(times)), np.diff(segments.row_ends, prepend=0))
        of_piece = times[row_of]
        if self._by == SOURCE:
            keys, classes = _sources(part, own, segments.piece_documents)
        else:
            keys, found = self._classes(records)
            of_row = np.zeros(len(times), np.int64)
            of_row[rows] = found
            classes = of_row[row_of]
        tokens, table = None, part.table
        if self._tokens and table is not None:
            if len(keys) == 1 and (times == times[0]).all():
                one = table.columns["packed_tokens"][own]
                tokens = np.array([[one * times[0], one]])
            else:
                lengths = np.zeros(len(of_piece), np.int64)
                read = np.flatnonzero(times)
                for at in range(0, len(read), _BLOCK_ROWS):
                    block = read[at : at + _BLOCK_ROWS]
                    lengths[np.isin(row_of, block)] = opened.lengths(block)
                tokens = _sums(classes, of_piece, len(keys), lengths)
        begins = segments.piece_firsts == 0
        yield from _counted(keys, classes[begins], of_piece[begins], tokens)

    def _classes(self, records: IntArray) -> tuple[list[Key], IntArray]:
        """Returns the values of a column, and the number of each record's value."""
        if self._by == DATASET:
            return [(None, None)], np.zeros(len(records), np.int64)
        found, classes = np.unique(self._column().read(records), return_inverse=True)
        keys: list[Key] = [
            (one, None) if one == one else (None, NAN) for one in found.tolist()
        ]
        return keys, classes.astype(np.int64)

    def _column(self) -> Column:
        column = self._dataset.column(self._by.removeprefix("column:"))
        if column.shape[1:]:
            raise InputError(
                "the column holds arrays, which are not counted",
                where=repr(self._dataset),
                expected="a column of single values",
                got=str(column.kind),
                cure="attach a column with a number or a text for each record",
            )
        return column


def _sources(part: Part, shard: int, numbers: Any) -> tuple[list[Key], IntArray]:
    """Returns the source files of records or documents, and each one's number."""
    found = stored_sources(part, shard)
    if isinstance(found, str):
        return [(None, UNKNOWN)], np.zeros(len(numbers), np.int64)
    files, classes = np.unique(found.places.files[numbers], return_inverse=True)
    return [(found.files[file].path, None) for file in files.tolist()], classes


def _sums(
    classes: IntArray, times: IntArray, count: int, sizes: IntArray | int = 1
) -> IntArray:
    """Returns the sizes of classes, int64 [count, 2]: of all sightings, and once."""
    both = (times * sizes, (times > 0) * sizes)
    # Exact, as no shard has 2**53 tokens.
    sums = [np.bincount(classes, weights, minlength=count) for weights in both]
    return np.stack(sums, axis=1).astype(np.int64)


def _counted(
    keys: Sequence[Key],
    classes: IntArray,
    times: IntArray,
    tokens: IntArray | None = None,
) -> Iterator[tuple[Key, Counts]]:
    """Yields the parts that were seen."""
    documents = _sums(classes, times, len(keys)).tolist()
    known: Any = [(None, None)] * len(keys) if tokens is None else tokens.tolist()
    for key, own, theirs in zip(keys, documents, known, strict=True):
        if own[0] or theirs[0]:
            yield key, Counts(*own, *theirs)
