"""The plan of rows: against packing one piece after the other, and what it promises."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.transforms.tokens.best_fit import plan_rows


def plan(lengths, length, method):
    """Returns the pieces of each row: document, first token, length."""
    packing = plan_rows(np.array(lengths, np.uint32), length=length, method=method)
    assert [a.dtype for a in packing] == [np.int64, *[np.uint32] * 3]
    ends = [0, *packing.row_ends.tolist()]
    pieces = list(zip(*(column.tolist() for column in packing[1:]), strict=True))
    assert ends[-1] == len(pieces)
    return [pieces[a:b] for a, b in itertools.pairwise(ends)]


def best_fit_rows(lengths, length):
    """Returns how many rows best-fit decreasing needs, one piece at a time."""
    pieces = [length for n in lengths for _ in range(n // length)]
    pieces += [n % length for n in lengths if n % length]
    spaces = []
    for piece in sorted(pieces, reverse=True):
        fitting = [space for space in spaces if space >= piece]
        if fitting:
            spaces.remove(min(fitting))
        spaces.append(min(fitting, default=length) - piece)
    return len(spaces)


def checked(lengths, length, method):
    """Returns the plan, checked for what holds for every method."""
    rows = plan(lengths, length, method)
    assert all(size for row in rows for _, _, size in row)
    assert all(0 < sum(size for _, _, size in row) <= length for row in rows)
    # Every token once: pieces follow one another in each document.
    ends = [0] * len(lengths)
    for document, first, size in sorted(piece for row in rows for piece in row):
        assert first == ends[document]
        ends[document] += size
    assert ends == list(lengths)
    # The order of the input: of rows by their earliest piece, of pieces in a row.
    assert all(row == sorted(row) for row in rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    return rows


def test_rows():
    rows = [[(0, 0, 7), (3, 0, 3)], [(1, 0, 2), (2, 0, 8)]]
    assert plan([7, 2, 8, 3], 10, "best-fit") == rows
    # The rest of a long document fills a row that begins before it.
    rows = [[(0, 0, 4), (1, 20, 6)], [(1, 0, 10)], [(1, 10, 10)]]
    assert plan([4, 26], 10, "best-fit") == rows


@given(st.lists(st.integers(0, 70), max_size=60), st.integers(1, 40))
def test_against_one_piece_at_a_time(lengths, length):
    rows = checked(lengths, length, "best-fit")
    assert len(rows) == best_fit_rows(lengths, length)
    # No avoidable cut: whole rows, and one rest.
    pieces = [document for row in rows for document, _, _ in row]
    assert all(pieces.count(d) == -(-n // length) for d, n in enumerate(lengths))
    rows = checked(lengths, length, "concat")
    assert all(sum(size for _, _, size in row) == length for row in rows[:-1])
    rows = checked([min(n, length) for n in lengths], length, "none")
    assert all(len(row) == 1 for row in rows)


@pytest.mark.parametrize("length", [2048, 4096])
def test_little_padding_in_shards_of_20_000_documents(length):
    chance, sigma = np.random.default_rng(0), 1.5
    lengths = chance.lognormal(np.log(500) - sigma**2 / 2, sigma, 20_000)
    lengths = np.maximum(lengths, 1).astype(np.uint32)
    rows = len(plan_rows(lengths, length=length, method="best-fit").row_ends)
    assert 1 - lengths.sum() / (rows * length) <= 0.001


@pytest.mark.parametrize("method", ["best-fit", "concat"])
def test_largest_documents_and_rows(method):
    assert len(checked([2**32 - 1, 1, 2**32 - 2], 2**31, method)) == 4
