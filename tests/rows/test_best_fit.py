"""The plan of rows: against packing one piece after the other, and what it promises."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.transforms.tokens.best_fit import Packing, plan_rows

METHODS = ("best-fit", "concat", "none")

Piece = tuple[int, int, int]  # Document, first token, length.


def plan(lengths: Sequence[int], length: int, method: str) -> list[list[Piece]]:
    """Returns the pieces of each row."""
    packing = plan_rows(np.array(lengths, np.uint32), length=length, method=method)
    return rows_of(packing)


def rows_of(packing: Packing) -> list[list[Piece]]:
    assert packing.row_ends.dtype == np.int64
    assert all(column.dtype == np.uint32 for column in packing[1:])
    ends = packing.row_ends.tolist()
    pieces = list(zip(*(column.tolist() for column in packing[1:]), strict=True))
    assert [0, *ends][-1] == len(pieces)
    return [pieces[a:b] for a, b in itertools.pairwise([0, *ends])]


def best_fit_rows(lengths: Sequence[int], length: int) -> int:
    """Returns how many rows best-fit decreasing needs, one piece at a time."""
    pieces = [length for n in lengths for _ in range(n // length)]
    pieces += [n % length for n in lengths if n % length]
    spaces: list[int] = []
    for piece in sorted(pieces, reverse=True):
        fitting = [space for space in spaces if space >= piece]
        if fitting:
            spaces.remove(min(fitting))
        spaces.append(min(fitting, default=length) - piece)
    return len(spaces)


def check(lengths: Sequence[int], length: int, rows: list[list[Piece]]) -> None:
    """Checks what holds for every method."""
    assert all(rows)
    assert all(size for row in rows for _, _, size in row)
    assert all(sum(size for _, _, size in row) <= length for row in rows)
    # Every token once: pieces follow one another in each document.
    ends = [0] * len(lengths)
    for document, first, size in sorted(piece for row in rows for piece in row):
        assert first == ends[document]
        ends[document] += size
    assert ends == list(lengths)
    # The order of the input: of rows by their earliest piece, of pieces in a row.
    assert all(row == sorted(row) for row in rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([0], []),
        ([3], [[(0, 0, 3)]]),
        ([10], [[(0, 0, 10)]]),
        ([7, 2, 8, 3], [[(0, 0, 7), (3, 0, 3)], [(1, 0, 2), (2, 0, 8)]]),
        # The rest of a long document fills a row that begins before it.
        ([4, 26], [[(0, 0, 4), (1, 20, 6)], [(1, 0, 10)], [(1, 10, 10)]]),
        ([0, 5, 0, 5, 0], [[(1, 0, 5), (3, 0, 5)]]),
        # The 4 fills the row of the 6, and leaves the row of the 2s as it is.
        ([2, 6, 2, 4], [[(0, 0, 2), (2, 0, 2)], [(1, 0, 6), (3, 0, 4)]]),
    ],
)
def test_best_fit(lengths: list[int], expected: list[list[Piece]]) -> None:
    assert plan(lengths, 10, "best-fit") == expected


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([0, 0], []),
        ([10, 0, 10], [[(0, 0, 10)], [(2, 0, 10)]]),
        ([7, 2, 8], [[(0, 0, 7), (1, 0, 2), (2, 0, 1)], [(2, 1, 7)]]),
        ([4, 26], [[(0, 0, 4), (1, 0, 6)], [(1, 6, 10)], [(1, 16, 10)]]),
    ],
)
def test_concat(lengths: list[int], expected: list[list[Piece]]) -> None:
    assert plan(lengths, 10, "concat") == expected


def test_none_gives_each_document_a_row() -> None:
    assert plan([7, 0, 10], 10, "none") == [[(0, 0, 7)], [(2, 0, 10)]]
    with pytest.raises(ValueError, match="a document of 11 tokens in rows of 10"):
        plan([7, 11], 10, "none")


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of 0 tokens"):
        plan([1], 0, "none")
    with pytest.raises(ValueError, match="unknown method 'first-fit'"):
        plan([1], 10, "first-fit")


@given(st.lists(st.integers(0, 70), max_size=60), st.integers(1, 40))
def test_against_one_piece_at_a_time(lengths: list[int], length: int) -> None:
    rows = plan(lengths, length, "best-fit")
    check(lengths, length, rows)
    assert len(rows) == best_fit_rows(lengths, length)
    # No avoidable cut: whole rows, and one rest.
    pieces = [document for row in rows for document, _, _ in row]
    assert all(pieces.count(d) == -(-n // length) for d, n in enumerate(lengths))

    rows = plan(lengths, length, "concat")
    check(lengths, length, rows)
    assert all(sum(size for _, _, size in row) == length for row in rows[:-1])

    short = [min(n, length) for n in lengths]
    rows = plan(short, length, "none")
    check(short, length, rows)
    assert all(len(row) == 1 for row in rows)


def lognormal(documents: int, *, mean: float = 500, sigma: float = 1.5) -> np.ndarray:
    chance = np.random.default_rng(0)
    lengths = chance.lognormal(np.log(mean) - sigma**2 / 2, sigma, documents)
    return np.maximum(lengths, 1).astype(np.uint32)


@pytest.mark.parametrize("length", [2048, 4096])
def test_little_padding_in_shards_of_20_000_documents(length: int) -> None:
    lengths = lognormal(20_000)
    rows = len(plan_rows(lengths, length=length, method="best-fit").row_ends)
    assert 1 - lengths.sum() / (rows * length) <= 0.001


@pytest.mark.parametrize("method", METHODS)
def test_many_documents_in_little_memory(method: str) -> None:
    lengths = lognormal(1_000_000)
    if method == "none":
        lengths = np.minimum(lengths, 2048)
    tracemalloc.start()
    packing = plan_rows(lengths, length=2048, method=method)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    pieces = len(packing.documents)
    assert peak <= 24 * pieces + (8 << 20)
    # All of them are there: each place once.
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    places = begins[packing.documents] + packing.firsts
    order = np.argsort(places)
    ends = (places + packing.lengths)[order]
    assert np.array_equal(places[order], np.append(0, ends[:-1]))
    assert ends[-1] == lengths.sum(dtype=np.int64)
    assert packing.row_ends[-1] == pieces
    begins = np.append(0, packing.row_ends[:-1])
    assert np.add.reduceat(packing.lengths, begins).max() == 2048


def test_largest_documents_and_rows() -> None:
    lengths = [2**32 - 1, 1, 2**32 - 2]
    rows = plan(lengths, 2**31, "best-fit")
    check(lengths, 2**31, rows)
    assert len(rows) == 4
    check(lengths, 2**31, plan(lengths, 2**31, "concat"))
