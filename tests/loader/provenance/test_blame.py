"""Losses made up from planted documents: they come out on top."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.errors import InputError
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.loader.provenance import packed_shard
from gristmill.loader.provenance.blame import Suspect, blame
from gristmill.loader.provenance.excess import HIGH, Losses, excess
from tests.support.conversion import convert, job_of
from tests.support.packed_datasets import (
    MAPPED,
    STRIDE,
    documents,
    mapped_places,
    number_of,
    pack,
    write_frames,
)

WINDOW = range(60, 100)
STEPS = 160


class Made(NamedTuple):
    """A mixture of two datasets, seen several times in the window.

    Attributes:
        batches: The batches.
        places: Where each document comes from.
        rows: Of each step, the documents of each row, and their tokens.
    """

    batches: loader.GlobalBatches
    places: dict[int, tuple[str, int]]
    rows: list[list[list[tuple[int, int, int]]]]

    def seen(self, document: int) -> list[tuple[int, int]]:
        """Returns the steps and rows of the window that have a document."""
        return [
            (step, row)
            for step in WINDOW
            for row, pieces in enumerate(self.rows[step])
            if any(one == document for one, *_ in pieces)
        ]

    def seen_often(self) -> list[int]:
        """Returns documents that are in few steps of the window, once in each."""
        known = {one for step in WINDOW for row in self.rows[step] for one, *_ in row}
        steps = {one: [step for step, _ in self.seen(one)] for one in sorted(known)}
        return [
            one
            for one, found in steps.items()
            if 3 <= len(found) <= 6 and len({*found}) == len(found)
        ]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    places: dict[int, tuple[str, int]] = {}
    datasets = {}
    for number, name in enumerate("ab"):
        folder = tmp_path_factory.mktemp(name)
        records = documents(300, seed=number, first=1000 * number)
        own = write_frames(folder / "in" / "x.tfrecord", records)
        plan = ("num_shards", 2)
        convert(job_of(folder / "in", folder / "out", plan=plan, map=MAPPED))
        places |= (own := mapped_places(own))
        pack(folder / "out", own)
        datasets[name] = loader.open(folder / "out")
    batches = loader.global_batches(
        datasets, batch_size=8, seed=5, weights={"a": 2, "b": 1}
    )
    rows = [[pieces_of(data) for data in batches.read(step)] for step in range(STEPS)]
    return Made(batches, places, rows)


def pieces_of(data: bytes) -> list[tuple[int, int, int]]:
    """Returns the document and the tokens of each piece of a row."""
    batch = decode_rows(RowFormat(32, 4), [data])
    ends = np.cumsum(batch.lengths).tolist()
    begins = [0, *ends[:-1]]
    return [
        (int(batch.tokens[begin]) // STRIDE, begin, end)
        for begin, end in zip(begins, ends, strict=True)
    ]


Rows = list[list[tuple[int, int, int]]]


def by_rows(step: int, rows: Rows, planted: set[int]) -> list[tuple]:
    return [
        (step, row, -1, -1, any(one in planted for one, *_ in pieces))
        for row, pieces in enumerate(rows)
    ]


def by_steps(step: int, rows: Rows, planted: set[int]) -> list[tuple]:
    return [(step, -1, -1, -1, sum(one[4] for one in by_rows(step, rows, planted)))]


def by_tokens(step: int, rows: Rows, planted: set[int]) -> list[tuple]:
    return [
        (step, row, begin, end, document in planted)
        for row, pieces in enumerate(rows)
        for document, begin, end in pieces
    ]


def made_up(
    made: Made,
    planted: set[int],
    losses: Callable[[int, Rows, set[int]], list[tuple]],
    *,
    noise: float = 0.1,
) -> Losses:
    """Returns losses that rise with planted documents, in the window alone."""
    chance = random.Random(7)
    found = []
    for step in range(STEPS):
        for *place, risen in losses(step, made.rows[step], planted):
            loss = 2 + chance.gauss(0, noise) + 4 * risen * (step in WINDOW)
            found.append((*place, loss))
    *places, values = map(np.array, zip(*found, strict=True))
    return Losses(*places, values)


def place_of(found: Suspect) -> tuple[str | None, int | None]:
    return found.source_path, found.source_offset_bytes


@pytest.mark.parametrize("losses", [by_rows, by_tokens, by_steps])
def test_planted_documents_come_out_on_top(made: Made, losses) -> None:
    for document in random.Random(1).sample(made.seen_often(), 5):
        found = excess(made_up(made, {document}, losses), WINDOW)
        suspects = blame(made.batches, found)
        (own,) = [s for s in suspects if place_of(s) == made.places[document]][:1]
        # Documents that are in all of these losses, and in no other, are alike.
        assert own.score == pytest.approx(suspects[0].score)
        assert own.seen == own.high
        if losses is by_tokens:
            assert suspects[0] == own
            assert suspects[1].score < own.score if suspects[1:] else True


def test_all_rows_of_a_step_are_named(made: Made) -> None:
    losses = made_up(made, set(), by_steps)
    losses.values[(losses.steps >= 70) & (losses.steps < 80)] += 4
    twice = 0
    for one in blame(made.batches, excess(losses, WINDOW), most=200):
        alike = [n for n, place in made.places.items() if place == place_of(one)]
        assert one.rows in [
            tuple(row for row in made.seen(number) if 70 <= row[0] < 80)
            for number in alike
        ]
        twice += len(one.rows) > one.high
    assert twice


def test_several_planted_documents_come_before_all_others(made: Made) -> None:
    planted = set(random.Random(2).sample(made.seen_often(), 3))
    found = excess(made_up(made, planted, by_tokens), WINDOW)
    suspects = blame(made.batches, found, most=3)
    assert {*map(place_of, suspects)} == {made.places[one] for one in planted}


def test_a_suspect_says_where_it_was_high(made: Made) -> None:
    for document in made.seen_often()[:8]:
        wanted = made.seen(document)
        found = excess(made_up(made, {document}, by_rows), WINDOW)
        first = next(
            one
            for one in blame(made.batches, found)
            if place_of(one) == made.places[document]
        )
        assert first.rows == tuple(wanted)
        assert first.high == first.seen == len(wanted)
        of_rows = zip(
            found.losses.steps.tolist(), found.losses.rows.tolist(), strict=True
        )
        deviations = [
            value
            for value, place in zip(found.deviations.tolist(), of_rows, strict=True)
            if place in wanted
        ]
        assert first.score == pytest.approx(sum(deviations) / len(wanted) ** 0.5)
        location = made.batches.locate(*wanted[0])
        assert (first.shard, first.dataset) == (location.shard, location.dataset)
        assert first.document in {piece.document for piece in location.pieces}
        assert first.record is None


def test_what_was_also_in_low_losses_is_less_suspect(made: Made) -> None:
    compared = 0
    for document in made.seen_often():
        losses = made_up(made, {document}, by_rows)
        suspects = blame(made.batches, excess(losses, WINDOW), most=100)
        high = {*made.seen(document)}
        for one in suspects:
            assert {*one.rows} <= high
            if one.seen > one.high == len(high):
                assert one.score < suspects[0].score
                compared += 1
    assert compared


def test_no_high_loss_blames_nothing(made: Made) -> None:
    losses = made_up(made, set(), by_rows, noise=0.0)
    assert blame(made.batches, excess(losses, WINDOW)) == []


def test_a_row_that_is_not_there(made: Made) -> None:
    losses = made_up(made, {made.seen_often()[0]}, by_rows)
    losses.rows[:] = 8
    with pytest.raises(InputError, match=r"row of a loss is out of range(.|\n)*0 to 7"):
        blame(made.batches, excess(losses, WINDOW))


def test_tokens_blame_no_other_document_of_their_row(made: Made) -> None:
    found = excess(made_up(made, {made.seen_often()[0]}, by_tokens), WINDOW)
    high = {
        tuple(place)
        for value, *place in zip(
            found.deviations.tolist(),
            *(column.tolist() for column in found.losses[:4]),
            strict=True,
        )
        if value >= HIGH
    }

    def counts(document: int) -> tuple[int, int]:
        own = {
            (step, row, begin, end)
            for step in WINDOW
            for row, pieces in enumerate(made.rows[step])
            for other, begin, end in pieces
            if other == document
        }
        return len(own & high), len(own)

    suspects = blame(made.batches, found)
    assert len(suspects) > 1
    for one in suspects:
        # The function makes several of some records.
        alike = [n for n, place in made.places.items() if place == place_of(one)]
        assert (one.high, one.seen) in map(counts, alike)


def test_records_of_joined_datasets_that_are_not_packed(tmp_path: pathlib.Path) -> None:
    places = {}
    for name, first in (("a", 0), ("b", 100)):
        records = documents(90, seed=3, first=first)
        inputs = tmp_path / name / "in" / "x.tfrecord"
        places |= write_frames(inputs, records)
        plan = ("num_shards", 2)
        convert(job_of(str(inputs), tmp_path / name / "out", plan=plan))
    joined = loader.open([tmp_path / "a" / "out", tmp_path / "b" / "out"])
    batches = loader.global_batches(joined, batch_size=8, seed=1)
    planted = 100 + 62  # In the second shard of the second dataset.
    values = []
    for step in range(STEPS):
        for row, data in enumerate(batches.read(step)):
            loss = 2 + (step + row) % 3 + 50 * (number_of(data) == planted)
            values.append((step, row, -1, -1, loss))
    *columns, losses = map(np.array, zip(*values, strict=True))
    suspect = blame(batches, excess(Losses(*columns, losses), WINDOW))[0]
    assert place_of(suspect) == places[planted]
    assert suspect.seen == suspect.high >= 1
    assert (suspect.document, suspect.dataset) == (None, str(tmp_path / "b" / "out"))
    assert suspect.record is not None


def test_a_segment_index_is_read_for_high_losses_alone(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = made.seen_often()[0]
    opened: list[str] = []
    before = packed_shard.PackedShard.__init__

    def noted(self, dataset, number) -> None:
        before(self, dataset, number)
        opened.append(self.info.path)

    monkeypatch.setattr(packed_shard.PackedShard, "__init__", noted)
    found = excess(made_up(made, {document}, by_rows), WINDOW)
    suspects = blame(made.batches, found)
    assert {*opened} == {one.shard for one in suspects}
    assert len(opened) == 1
