"""Which documents, or records, were in the rows of a loss that rose."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.errors import InputError
from gristmill.loader.batches import Batches
from gristmill.loader.dataset import Dataset
from gristmill.loader.indices import IntArray
from gristmill.loader.provenance.document_source import document_source
from gristmill.loader.provenance.excess import HIGH, Excess
from gristmill.loader.provenance.packed_shard import PackedShard, packed_of
from gristmill.loader.provenance.recorded_source import recorded_source
from gristmill.loader.provenance.source_fields import SourcePlace

_LEAST_CANDIDATES = 200
_BLOCK_POSITIONS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suspect(SourcePlace):
    """A document of packed rows, or a record of others, that was in high losses.

    Attributes:
        score: The deviations of all losses of the window that it was in, added and
            divided by the square root of their number.
        high: How many of these losses are high.
        seen: How many there are.
        rows: The step and the row of each place where it was in a high loss.
        dataset: The dataset's name in a mixture, its path otherwise.
        shard: The file that holds it.
        document: Its number among the documents of the shard, None of a record.
        record: Its number among the records of the shard, None of a document.
    """

    score: float
    high: int
    seen: int
    rows: tuple[tuple[int, int], ...]
    dataset: str
    shard: str
    document: int | None = None
    record: int | None = None


class _Key(NamedTuple):
    """A document or a record."""

    dataset: int
    part: int
    shard: int  # Of the part.
    number: int  # In the shard.


class _Seen(NamedTuple):
    """A row of a high loss, and where its record is."""

    loss: int
    step: int
    row: int


def blame(batches: Batches, found: Excess, *, most: int = 20) -> list[Suspect]:
    """Returns the documents of the high losses of a window, the worst first.

    Only the segment indexes of the rows with high losses are read, and these rows where
    losses are those of tokens.

    Args:
        batches: What was trained on.
        found: The losses of the window.
        most: How many to return.

    Raises:
        InputError: There is no such step or row.
    """
    places = _Places(batches)
    high: dict[_Key, dict[int, list[tuple[int, int]]]] = collections.defaultdict(dict)
    for key, (loss, step, row) in places.in_high(found):
        high[key].setdefault(loss, []).append((step, row))
    deviations = found.deviations

    def at_most(key: _Key) -> float:
        """Returns the score, if it was in no other loss."""
        return float(deviations[list(high[key])].sum()) / math.sqrt(len(high[key]))

    # What else was seen of each takes longer to tell, and lowers most scores.
    worst = sorted(high, key=at_most, reverse=True)
    worst = worst[: max(_LEAST_CANDIDATES, 10 * most)]
    losses = _LossesAt(found)
    epochs = _epochs(batches, found)
    suspects = []
    for key in sorted(worst):  # A shard at a time.
        seen = {*high[key], *places.losses_of(key, losses, epochs[key.dataset])}
        total = float(deviations[sorted(seen)].sum())
        suspects.append((total / math.sqrt(len(seen)), len(seen), key))
    suspects.sort(key=lambda one: (-one[0], one[2]))
    return [
        Suspect(
            score=score,
            high=len(high[key]),
            seen=count,
            rows=tuple(sorted({row for rows in high[key].values() for row in rows})),
            **places.described(key),
        )
        for score, count, key in suspects[:most]
    ]


class _LossesAt:
    """The losses of a window by step and row."""

    def __init__(self, found: Excess):
        self._losses = found.losses
        self._at: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        for number, place in enumerate(
            zip(found.losses.steps.tolist(), found.losses.rows.tolist(), strict=True)
        ):
            self._at[place].append(number)

    def of(self, step: int, row: int, tokens: tuple[int, int] | None) -> Iterator[int]:
        """Yields those of a step, of a row of it, and of some of its tokens."""
        yield from self._at.get((step, -1), ())
        for number in self._at.get((step, row), ()):
            begin, end = self._losses.begins[number], self._losses.ends[number]
            if begin < 0 or tokens is None or (begin < tokens[1] and tokens[0] < end):
                yield number

    @property
    def of_tokens(self) -> bool:
        """Whether some are losses of tokens."""
        return bool((self._losses.begins >= 0).any())


class _Places:
    """Where documents and records are in the rows of batches."""

    def __init__(self, batches: Batches):
        self._batches = batches
        self._last: tuple[tuple[int, int, int], PackedShard | None] | None = None

    def in_high(self, found: Excess) -> Iterator[tuple[_Key, _Seen]]:
        """Yields what is in each high loss."""
        seen: list[_Seen] = []
        positions: list[IntArray] = []
        for number in np.flatnonzero(found.deviations >= HIGH).tolist():
            step, row = (int(c[number]) for c in found.losses[:2])
            here = self._batches.schedule.positions(step)
            if row >= len(here):
                raise InputError(
                    "row of a loss is out of range",
                    expected=f"0 to {len(here) - 1}",
                    got=f"row {row} of step {step:,}",
                    cure="give the row of the global batch, and the order that was "
                    "trained with",
                )
            rows = range(len(here)) if row < 0 else [row]
            seen += [_Seen(number, step, one) for one in rows]
            positions.append(here if row < 0 else here[row : row + 1])
        if not seen:
            return
        datasets, records = self._batches.schedule.batch_unchecked(
            np.concatenate(positions)
        )
        # A shard at a time: they are as many as rows, after a shuffle.
        for item in np.lexsort((records, datasets)).tolist():
            dataset, record = int(datasets[item]), int(records[item])
            shards, in_shard = self._batches.datasets[dataset].find([record])
            part, shard = self._part_of(dataset, int(shards[0]))
            row = int(in_shard[0])
            packed = self._opened(dataset, part, shard)
            if packed is None:
                yield _Key(dataset, part, shard, row), seen[item]
                continue
            numbers = packed.segments.row(row)[0]
            if (begin := int(found.losses.begins[seen[item].loss])) >= 0:
                end = int(found.losses.ends[seen[item].loss])
                pieces = packed.pieces(row)
                numbers = numbers[(pieces.begins < end) & (begin < pieces.ends)]
            for number in set(numbers.tolist()):
                yield _Key(dataset, part, shard, number), seen[item]

    def losses_of(self, key: _Key, losses: _LossesAt, epochs: range) -> set[int]:
        """Returns the losses of the window that a document or a record was in."""
        part = self._part(key)
        first = sum(map(len, self._batches.datasets[key.dataset].parts[: key.part]))
        first += part.shard(key.shard).first_record
        packed = self._opened(*key[:3])
        rows: list[tuple[int, tuple[int, int] | None]] = [(key.number, None)]
        if packed is not None:
            pieces = packed.segments.pieces_of(key.number)
            rows = [(row, None) for row in pieces.rows.tolist()]
            if losses.of_tokens:
                rows = []
                for row, number in zip(
                    *map(np.ndarray.tolist, pieces[:2]), strict=True
                ):
                    read = packed.pieces(int(row))
                    tokens = int(read.begins[number]), int(read.ends[number])
                    rows.append((int(row), tokens))
        return {
            number
            for row, tokens in rows
            for seen in self._batches.schedule.find(
                first + row,
                dataset=key.dataset,
                first_epoch=epochs.start,
                stop_epoch=epochs.stop,
            )
            for number in losses.of(seen.step, seen.row, tokens)
        }

    def described(self, key: _Key) -> dict[str, Any]:
        """Returns what a document or a record is: fields of `Suspect`."""
        part, info = self._part(key), self._part(key).shard(key.shard)
        packed = self._opened(*key[:3])
        fields = (
            recorded_source(part, info, key.number) | {"record": key.number}
            if packed is None
            else document_source(part, packed, key.number) | {"document": key.number}
        )
        names = self._batches.names
        name = names[key.dataset] if names else part.path
        return fields | {"dataset": name, "shard": info.path}

    def _part(self, key: _Key) -> Dataset:
        return self._batches.datasets[key.dataset].parts[key.part]

    def _part_of(self, dataset: int, shard: int) -> tuple[int, int]:
        """Returns the number of the joined dataset that has a shard, and its there."""
        for number, part in enumerate(self._batches.datasets[dataset].parts):
            if shard < part.num_shards:
                return number, shard
            shard -= part.num_shards
        raise IndexError(shard)

    def _opened(self, dataset: int, part: int, shard: int) -> PackedShard | None:
        """Returns a shard; None if its rows are not packed."""
        at = dataset, part, shard
        if self._last is None or self._last[0] != at:
            whole = self._batches.datasets[dataset].parts[part]
            packed = packed_of(whole, whole.shard(shard)) is not None
            self._last = at, PackedShard(whole, shard) if packed else None
        return self._last[1]


def _epochs(batches: Batches, found: Excess) -> list[range]:
    """Returns the epochs of each dataset that the steps of a window are in."""
    schedule = batches.schedule
    first = schedule.sizes.start(int(found.losses.steps.min()))
    last = int(found.losses.steps.max())
    stop = min(schedule.sizes.start(last + 1), schedule.stop)
    epochs = [range(0)] * len(batches.datasets)
    for begin in range(first, stop, _BLOCK_POSITIONS):
        positions = np.arange(begin, min(begin + _BLOCK_POSITIONS, stop))
        datasets, places = schedule.locate_unchecked(positions)
        for dataset in np.unique(datasets).tolist():
            here, order = places[datasets == dataset], schedule.grown[dataset]
            start = order.epoch_at(int(here.min()))
            start = min(start, epochs[dataset].start) if epochs[dataset] else start
            end = max(order.epoch_at(int(here.max())) + 1, epochs[dataset].stop)
            epochs[dataset] = range(start, end)
    return epochs
