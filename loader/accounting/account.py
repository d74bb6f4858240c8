"""The documents and tokens that a run has seen, by their source or by a column.

A record that is not a packed row is a document, and its tokens are not known. A
document of packed rows is seen with its first token, and each token with its row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.columns.column import Column
from gristmill.loader.columns.selection import Selection
from gristmill.loader.data.batches import Batches, dataset_numbers
from gristmill.loader.data.dataset import Dataset, GoneDataset, shards_of, table_of
from gristmill.loader.order.schedule import Passed
from gristmill.loader.provenance.stored_sources import (
    PackedShard,
    packed_of,
    source_runs,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenRecords:
    """How often each record of a dataset was seen.

    Attributes:
        whole: How many whole epochs had so many first records.
        parts: The records that were seen in each epoch that is not over.
        any_part: Those that were seen in one of these.
    """

    whole: Mapping[int, int]
    parts: tuple[Selection, ...]
    any_part: Selection

    def at(self, records: IntArray) -> IntArray:
        """Returns how often each of some records was seen: int64 [n]."""
        seen = np.zeros(len(records), np.int64)
        for first, epochs in self.whole.items():
            seen += epochs * (records < first)
        for part in self.parts:
            seen += part.has(records)
        return seen

    def between(self, bounds: IntArray) -> IntArray:
        """Returns how much was seen of the records in ranges.

        Args:
            bounds: int64 [ranges + 1], ascending numbers of records, at least one.

        Returns:
            int64 [ranges, 2]: how often records of the range were seen, and how many of
            them were.
        """
        seen = np.zeros(len(bounds) - 1, np.int64)
        for first, epochs in self.whole.items():
            seen += epochs * np.diff(np.minimum(bounds, first))
        for part in self.parts:
            seen += np.diff(part.ranks(bounds))
        all_of = max(self.whole, default=0)
        different = np.diff(np.minimum(bounds, all_of))
        different += np.diff(self.any_part.ranks(np.maximum(bounds, all_of)))
        return np.stack([seen, different], axis=1)


def seen_records(passed: Sequence[Passed], records: int) -> SeenRecords:
    """Returns how often each record of a dataset was seen.

    Args:
        passed: What each phase has given of it, or of its first records.
        records: How many records it has.
    """
    whole, parts = dict[int, int](), []
    together = Selection.empty_words(records)
    for _, order, count in passed:
        epochs, rest = divmod(count, order.num_records)
        if epochs:
            whole[order.num_records] = whole.get(order.num_records, 0) + epochs
        words = Selection.empty_words(records)
        for found in order.running_epoch(count):
            bits = np.uint64(1) << (found & 63).astype(np.uint64)
            np.bitwise_or.at(words, found >> 6, bits)
        if rest:
            parts.append(Selection(words, records))
            together |= words
    return SeenRecords(
        whole=whole, parts=tuple(parts), any_part=Selection(together, records)
    )


SOURCE, DATASET = "source", "dataset"
UNKNOWN = "the source was not kept"
GONE = "the edition is not there any more"
NAN = "not a number"
_MOST_VALUES = 1_000_000
_BLOCK_RECORDS = 1 << 16
_BLOCK_ROWS = 1 << 10

Key: TypeAlias = tuple[Any, str | None]
"""A source or a value, and a note where it is not known."""


class Counts(NamedTuple):
    """How much was seen: `different_` counts each document, or token, once.

    Tokens are None where they are not known.
    """

    documents: int = 0
    different_documents: int = 0
    tokens: int | None = 0
    different_tokens: int | None = 0

    def plus(self, other: Counts) -> Counts:
        """Returns the sum; what one does not know is not known of it."""
        return Counts(
            self.documents + other.documents,
            self.different_documents + other.different_documents,
            _added(self.tokens, other.tokens),
            _added(self.different_tokens, other.different_tokens),
        )


class SeenPart(NamedTuple):
    """What a run has seen of one source, or of the records with one value.

    Attributes:
        dataset: The dataset's name in a mixture, its path otherwise; of one with
            several editions also that.
        value: The source file, or the value of the column.
        note: Why that is None, if it is not known.
        counts: How much was seen.
    """

    dataset: str
    value: Any
    note: str | None
    counts: Counts


def account(
    batches: Batches, steps: int, *, by: str = SOURCE, tokens: bool = True
) -> list[SeenPart]:
    """Returns the parts that the first steps of a run have, in the order of datasets.

    Their parts are in the order of sources, or those with more documents come first.

    Whole epochs follow from tables. For tokens, the heads of packed rows are read where
    a shard has documents of several parts, or was not seen as a whole.

    Args:
        batches: The batches of the run.
        steps: How many steps.
        by: `source`, `dataset`, or the name of a column; `column:NAME` for a column of
            one of these names.
        tokens: Whether to count tokens, too.

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
    """Yields the datasets to count, with the numbers of those that they begin with."""
    for name in dict.fromkeys(batches.names) or [None]:
        left, told = dataset_numbers(batches, name), []
        while left:
            dataset = batches.datasets[left[0]]
            held = [
                n
                for n in left
                if n == left[0] or dataset.begins_with(batches.datasets[n].content)
            ]
            left = [n for n in left if n not in held]
            told.append((dataset, held))
        for dataset, held in told[::-1]:
            label = dataset.path if name is None else name
            if len(told) > 1 and dataset.edition is not None:
                label += f", edition {dataset.edition}"
            yield label, dataset, held


class _Seen:
    """What a run has seen of a dataset."""

    def __init__(
        self, dataset: Dataset, passed: Sequence[Passed], by: str, *, tokens: bool
    ):
        self._dataset, self._by, self._tokens = dataset, by, tokens
        self._seen = seen_records(passed, records=len(dataset))

    def parts(self) -> Iterator[tuple[Key, Counts]]:
        """Yields what was seen, in parts that are to be added up."""
        dataset, seen = self._dataset, self._seen
        if isinstance(dataset, GoneDataset):
            both = seen.between(np.array([0, len(dataset)]))
            yield from _counted([(None, GONE)], both)
            return
        if self._by not in (SOURCE, DATASET):
            self._column(dataset)  # It is an error also where nothing was seen.
        for shard in range(dataset.num_shards):
            info, (part, own) = dataset.shard(shard), dataset.part_of(shard)
            numbers = range(info.first_record, info.first_record + info.records)
            whole = seen.between(np.array([numbers.start, numbers.stop]))
            if not whole.any():
                continue
            if packed_of(part, part.shard(own)) is not None:
                yield from self._packed(part, own, np.arange(*_ends(numbers)))
            elif self._by == SOURCE:
                runs = [*source_runs(part, own)]
                sizes = [shards_of(dataset).first_record(shard), *(n for n, _ in runs)]
                bounds = dataset.numbers_here(np.cumsum(sizes))
                keys = [_source(path) for _, path in runs]
                yield from _counted(keys, seen.between(bounds))
            elif self._by == DATASET:
                yield from _counted([(None, None)], whole)
            else:
                for at in range(numbers.start, numbers.stop, _BLOCK_RECORDS):
                    block = np.arange(at, min(at + _BLOCK_RECORDS, numbers.stop))
                    times = seen.at(block)
                    block, times = block[times > 0], times[times > 0]
                    keys, classes = self._classes(dataset, block)
                    yield from _counted(keys, _sums(classes, times, len(keys)))

    def _packed(
        self, part: Dataset, own: int, records: IntArray
    ) -> Iterator[tuple[Key, Counts]]:
        """Yields what was seen of packed rows: the records of shard `own` of a part."""
        rows = self._dataset.find(records)[1]
        times = np.zeros(part.shard(own).records, np.int64)
        times[rows] = self._seen.at(records)
        opened = PackedShard(part, own)
        segments = opened.segments
        row_of = np.repeat(np.arange(len(times)), np.diff(segments.row_ends, prepend=0))
        seen = times[row_of]
        if self._by == SOURCE:
            runs = [*source_runs(part, own)]
            numbers = {
                path: n for n, path in enumerate(dict.fromkeys(p for _, p in runs))
            }
            keys = [_source(path) for path in numbers]
            each = [numbers[path] for _, path in runs]
            classes = np.repeat(each, [n for n, _ in runs])[segments.piece_documents]
        else:
            keys, found = self._classes(self._dataset, records)
            of_rows = np.zeros(len(times), np.int64)
            of_rows[rows] = found
            classes = of_rows[row_of]
        begin = segments.piece_firsts == 0
        documents, tokens = _sums(classes[begin], seen[begin], len(keys)), None
        table = table_of(part)
        if self._tokens and table is not None:
            if len(keys) == 1 and (times == times[0]).all():
                one = table.columns["packed_tokens"][own]
                tokens = np.array([[one * times[0], one]])
            else:
                lengths = np.zeros(len(seen), np.int64)
                read = np.flatnonzero(times)
                for at in range(0, len(read), _BLOCK_ROWS):
                    block = read[at : at + _BLOCK_ROWS]
                    lengths[np.isin(row_of, block)] = opened.lengths(block)
                tokens = _sums(classes, seen, len(keys), lengths)
        yield from _counted(keys, documents, tokens)

    def _classes(
        self, dataset: Dataset, numbers: IntArray
    ) -> tuple[list[Key], IntArray]:
        """Returns the parts that records are of, and the number of each one's."""
        if self._by == DATASET:
            return [(None, None)], np.zeros(len(numbers), np.int64)
        if self._by != SOURCE:
            values = self._column(dataset).read(numbers)
            if values.dtype != object:
                keys: list[Key]
                found, classes = np.unique(values, return_inverse=True)
                keys = [(v, None) if v == v else (None, NAN) for v in found.tolist()]
                return keys, classes
        else:
            values = np.empty(len(numbers), object)
            shards, in_shard = dataset.find(numbers)
            for shard in np.unique(shards).tolist():
                runs = [*source_runs(*dataset.part_of(shard))]
                ends, own = np.cumsum([count for count, _ in runs]), shards == shard
                paths = np.array([path for _, path in runs], object)
                values[own] = paths[np.searchsorted(ends, in_shard[own], side="right")]
        texts = values.tolist()
        known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        classes = np.fromiter(map(known.__getitem__, texts), np.int64, len(texts))
        of_source = self._by == SOURCE
        return [_source(text) if of_source else (text, None) for text in known], classes

    def _column(self, dataset: Dataset) -> Column:
        column = dataset.column(self._by.removeprefix("column:"))
        if column.shape[1:]:
            raise InputError(
                "the column holds arrays, which are not counted",
                where=repr(dataset),
                expected="a column of single values",
                got=str(column.kind),
                cure="attach a column with a number or a text for each record",
            )
        return column


def _ends(numbers: range) -> tuple[int, int]:
    return numbers.start, numbers.stop


def _added(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _source(path: str | None) -> Key:
    return path, UNKNOWN if path is None else None


def _sums(
    classes: IntArray, times: IntArray, count: int, sizes: IntArray | int = 1
) -> IntArray:
    """Returns sums of sizes, int64 [count, 2]: as often as seen, and each once."""
    both = (times * sizes, (times > 0) * sizes)
    # Exact, as no shard has 2**53 tokens.
    sums = [np.bincount(classes, weights, minlength=count) for weights in both]
    return np.stack(sums, axis=1).astype(np.int64)


def _counted(
    keys: Sequence[Key], documents: IntArray, tokens: IntArray | None = None
) -> Iterator[tuple[Key, Counts]]:
    """Yields the parts of which something was seen."""
    known: Sequence[Any] = [(None, None)] * len(keys)
    if tokens is not None:
        known = tokens.tolist()
    for key, own, theirs in zip(keys, documents.tolist(), known, strict=True):
        if own[0] or theirs[0]:
            yield key, Counts(*own, *theirs)
