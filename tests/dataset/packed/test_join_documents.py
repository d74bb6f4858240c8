"""Joining documents: what is lost, doubled, swapped or changed is found, and where."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.packed import join_documents
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.document_proofs import crc32cs_of, followed_by
from gristmill.dataset.packed.join_documents import DocumentJoiner, JoinedDocuments
from gristmill.dataset.packed.row_format import (
    RowFormat,
)
from gristmill.dataset.packed.segment_index import SegmentIndex
from tests.support.document_rows import PackedRows, Piece, packed_rows

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


def join(packed: PackedRows, batch: int = 2, **options: int) -> JoinedDocuments:
    records, row_format, index = packed.records, packed.row_format, packed.index
    batches = (records[n : n + batch] for n in range(0, len(records), batch))
    return join_documents.join_documents(
        batches, row_format=row_format, index=index, **options
    )


def crc32c(document: Sequence[int]) -> int:
    return google_crc32c.value(np.array(document, "<u4").tobytes())


def digest(documents: Sequence[Sequence[int]]) -> RecordsDigest:
    full = [document for document in documents if document]
    crc32cs = np.array([*map(crc32c, full)], np.uint32)
    return RecordsDigest.of(crc32cs, np.array([4 * len(d) for d in full], np.int64))


@pytest.mark.parametrize("row_format", FORMATS)
def test_documents_are_joined(row_format: RowFormat) -> None:
    joined = join(packed_rows(DOCUMENTS, ROWS, row_format))
    assert joined.lengths.tolist() == [3, 21, 0, 8, 2]
    expected = [crc32c(document) if document else 0 for document in DOCUMENTS]
    assert joined.crc32cs.tolist() == expected
    assert joined.counts == PackedCounts(
        documents=4,
        tokens=34,
        pieces=6,
        padding_tokens=6,
        cut_documents=1,
        most_pieces=2,
        digest_low=digest(DOCUMENTS).low,
        digest_high=digest(DOCUMENTS).high,
    )


def test_no_rows_at_all() -> None:
    joined = join(packed_rows([], [], FORMATS[0]))
    assert joined.counts == PackedCounts()
    assert len(joined.lengths) == 0


def changed(index: SegmentIndex, **columns: list[int]) -> SegmentIndex:
    types = {"row_ends": np.int64}
    arrays = {
        name: np.array(values, types.get(name, np.uint32))
        for name, values in columns.items()
    }
    return dataclasses.replace(index, **arrays)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        # A row is lost, or there twice.
        (
            ROWS[:-1],
            {},
            "there are fewer rows than the segment index has\n"
            "  where:    row 4\n  expected: 5 rows\n  got:      4",
        ),
        (
            [*ROWS, ROWS[-1]],
            {},
            "there are more rows than the segment index has\n"
            "  where:    row 5\n  expected: 5 rows\n  got:      6 or more",
        ),
        # A piece is lost.
        (
            [[(0, 0, 3)], *ROWS[1:]],
            {},
            "a row does not have the pieces that the segment index has\n"
            "  where:    row 0\n  expected: 2 pieces\n  got:      1",
        ),
        # Pieces of the same row, and rows, that changed places.
        (
            [[(1, 16, 5), (0, 0, 3)], *ROWS[1:]],
            {},
            "a piece is not the part of its document that the segment index has\n"
            "  where:    row 0, document 0 (place 0 of source 0)\n"
            "  expected: from token 0 of the document on\n"
            "  got:      from token 16 on",
        ),
        (
            [ROWS[0], ROWS[2], ROWS[1], *ROWS[3:]],
            {},
            "a piece is not the part of its document that the segment index has\n"
            "  where:    row 1, document 1 (place 100 of source 0)\n"
            "  expected: from token 0 of the document on\n"
            "  got:      from token 8 on",
        ),
        # Another first token, in both.
        (
            [[(0, 0, 3), (1, 15, 5)], *ROWS[1:]],
            {"piece_firsts": [0, 15, 0, 8, 0, 0]},
            "pieces of a document do not follow one another\n"
            "  where:    row 0, document 1 (place 100 of source 0)\n"
            "  expected: a piece from token 16 on\n"
            "  got:      from token 15 on",
        ),
        # A shorter piece.
        (
            [ROWS[0], [(1, 0, 7)], *ROWS[2:]],
            {},
            "pieces of a document do not follow one another\n"
            "  where:    row 2, document 1 (place 100 of source 0)\n"
            "  expected: a piece from token 7 on\n"
            "  got:      from token 8 on",
        ),
        # The first piece is of another document.
        (
            ROWS,
            {"piece_documents": [0, 1, 2, 1, 3, 4]},
            "pieces of a document do not follow one another\n"
            "  where:    row 2, document 1 (place 100 of source 0)\n"
            "  expected: a piece from token 0 on\n"
            "  got:      from token 8 on",
        ),
        (
            ROWS,
            {"piece_documents": [0, 1, 1, 1, 3, 3]},
            "a document is in rows twice\n"
            "  where:    row 4, document 3 (place 300 of source 0)",
        ),
    ],
)
def test_rows_that_contradict_the_index(
    rows: list[list[Piece]], columns: dict[str, list[int]], message: str
) -> None:
    good = packed_rows(DOCUMENTS, ROWS, FORMATS[0])
    records = packed_rows(DOCUMENTS, rows, FORMATS[0]).records
    index = changed(good.index, **columns)
    with pytest.raises(CorruptShardError) as e:
        join(PackedRows(FORMATS[0], records, index))
    assert str(e.value).startswith(f"{message}\n  to do: ")


@pytest.mark.parametrize("batch_bytes", [1, 100, 1 << 20])
def test_a_record_that_is_no_row_is_named(batch_bytes: int) -> None:
    packed = packed_rows(DOCUMENTS, ROWS, FORMATS[0])
    packed.records[3] = packed.records[3][:-1]
    with pytest.raises(CorruptShardError, match=r"where: +row 3\n"):
        join(packed, batch_bytes=batch_bytes)


def test_rows_are_joined_as_they_come() -> None:
    """No more than a MiB of them waits."""
    packed = packed_rows(DOCUMENTS, ROWS, FORMATS[0])
    joiner = DocumentJoiner(packed.row_format, packed.index)
    joiner.add(packed.records)
    with pytest.raises(CorruptShardError):
        joiner.add([bytes(1 << 20)])


def test_a_changed_token_changes_checksum_and_digest() -> None:
    good = join(packed_rows(DOCUMENTS, ROWS, FORMATS[0]))
    for document, token in [(0, 1), (1, 0), (1, 9), (1, 20), (3, 7)]:
        documents = [list(each) for each in DOCUMENTS]
        documents[document][token] ^= 1 << 20
        bad = join(packed_rows(documents, ROWS, FORMATS[0]))
        different = np.flatnonzero(bad.crc32cs != good.crc32cs)
        assert different.tolist() == [document]
        assert bad.counts.digest != good.counts.digest


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30), max_size=12),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
)
def test_any_pieces_in_any_rows(
    documents: list[list[int]], chance: random.Random, batch: int
) -> None:
    pieces: list[Piece] = []
    for number, document in enumerate(documents):
        inner = chance.sample(range(len(document) + 1), min(2, len(document) + 1))
        cuts = sorted({0, *inner, len(document)})
        pieces += [(number, a, b - a) for a, b in itertools.pairwise(cuts)]
    rows = [[piece] for piece in pieces]
    chance.shuffle(rows)
    for _ in range(len(pieces) // 2):
        row = rows.pop()
        rows[0] = sorted(rows[0] + row)
    joined = join(packed_rows(documents, rows, RowFormat(length=1000)), batch)
    assert joined.crc32cs.tolist() == [*map(crc32c, documents)]
    assert joined.lengths.tolist() == [*map(len, documents)]
    assert joined.counts.digest == digest(documents)
    assert joined.counts.pieces == len(pieces)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6), st.integers(1, 2**20))
def test_the_checksum_of_parts_end_to_end(parts: list[bytes], zeros: int) -> None:
    parts.append(bytes(zeros))
    crc32cs = np.array([google_crc32c.value(part) for part in parts], np.uint32)
    sizes = np.array([len(part) for part in parts])
    following = sizes.sum() - np.cumsum(sizes)
    shares = followed_by(crc32cs, following)
    assert np.bitwise_xor.reduce(shares) == google_crc32c.value(b"".join(parts))


def test_checksums_of_runs() -> None:
    ids = np.array([1, 2**32 - 1, 70_000], np.uint32)
    found = crc32cs_of(ids, np.array([2, 0, 1]))
    assert found.dtype == np.uint32
    assert found.tolist() == [*map(crc32c, ([1, 2**32 - 1], [], [70_000]))]
    assert len(crc32cs_of(ids[:0], np.zeros(0, np.uint32))) == 0
