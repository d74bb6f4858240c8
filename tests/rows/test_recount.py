"""Counting rows again: what is lost, doubled or cut is found, and where."""

from __future__ import annotations

import pytest

from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.recount import RowCounter
from gristmill.dataset.packed.row_format import RowFormat
from tests.support.document_rows import Piece, packed_rows

FORMATS = [RowFormat(length=8, id_bytes=3), RowFormat(length=8, rows="example")]
DOCUMENTS = [[1, 2, 3], list(range(10, 31)), [], [4] * 8, [5, 6]]
# The rest of document 1 is in a row before its first pieces.
ROWS: list[list[Piece]] = [
    [(0, 0, 3), (1, 16, 5)],
    [(1, 0, 8)],
    [(1, 8, 8)],
    [(3, 0, 8)],
    [(4, 0, 2)],
]


def count(rows: list[list[Piece]], row_format: RowFormat = FORMATS[0]) -> PackedCounts:
    """Returns the counts of rows, for the index of `ROWS`."""
    index = packed_rows(DOCUMENTS, ROWS, row_format).index
    counter = RowCounter(row_format, index, ends=(1, 6), batch_bytes=40)
    for record in packed_rows(DOCUMENTS, rows, row_format).records:
        counter.add([record])
    return counter.finish()


@pytest.mark.parametrize("row_format", FORMATS)
def test_rows_are_counted(row_format: RowFormat) -> None:
    assert count(ROWS, row_format) == PackedCounts(
        documents=4,
        tokens=34,
        pieces=6,
        padding_tokens=6,
        most_pieces=2,
        begun_documents=1,
        ended_documents=1,
    )


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        (ROWS[:-1], "row 4"),
        ([*ROWS, ROWS[-1]], "row 5"),
        ([[(0, 0, 3)], *ROWS[1:]], "row 0"),
        ([ROWS[0], ROWS[2], ROWS[1], *ROWS[3:]], "row 1, document 1"),
        ([[(0, 0, 3), (1, 16, 4)], *ROWS[1:]], ""),
        ([ROWS[0], [(1, 0, 7)], *ROWS[2:]], "row 2, document 1"),
    ],
)
def test_rows_of_another_index(rows: list[list[Piece]], where: str) -> None:
    if not where:  # A document that ends earlier has other tokens.
        assert count(rows).tokens == 33
        return
    with pytest.raises(CorruptShardError) as raised:
        count(rows)
    assert str(raised.value.where).startswith(where)
