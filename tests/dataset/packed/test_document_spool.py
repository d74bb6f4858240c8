"""Documents come back in their order from rows whose pieces are in any."""

from __future__ import annotations

import dataclasses
import tempfile

import numpy as np
import pytest

from gristmill.dataset.base.errors import CorruptShardError, StorageError
from gristmill.dataset.packed.document_spool import DocumentSpool
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from tests.support.document_rows import PackedRows, Piece, packed_rows


def made_up(seed: int, id_bytes: int = 2) -> tuple[list[list[int]], PackedRows]:
    """Documents, some empty or cut, in rows that take their pieces in any order."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 30, size=60)
    lengths[[0, 7, 8, 59]] = 0
    most = 1 << 8 * id_bytes
    documents = [random.integers(0, most, size=n).tolist() for n in lengths]
    pieces: list[Piece] = []
    for number, document in enumerate(documents):
        first = 0
        while first < len(document):
            length = min(int(random.integers(1, 12)), len(document) - first)
            pieces.append((number, first, length))
            first += length
    order = random.permutation(len(pieces))
    rows = [
        sorted(pieces[at] for at in order[begin : begin + 3])
        for begin in range(0, len(pieces), 3)
    ]
    return documents, packed_rows(documents, rows, RowFormat(40, id_bytes))


def spooled(
    rows: PackedRows,
    *,
    lost: tuple[int, ...] = (),
    batch: int = 4,
    batch_tokens: int = 1 << 18,
) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    with DocumentSpool(
        rows.index, rows.row_format, where="here", batch_tokens=batch_tokens
    ) as spool:
        for begin in range(0, len(rows.records), batch):
            if begin // batch not in lost:
                records = rows.records[begin : begin + batch]
                spool.add(begin, decode_rows(rows.row_format, records))
        for numbers, lengths, ids, _ in spool.batches():
            ends = np.cumsum(lengths)
            assert len(ids) == (ends[-1] if len(ends) else 0)
            parts = np.split(ids, ends[:-1]) if len(ends) else []
            assert list(numbers) == sorted(numbers)
            found |= {
                int(number): part.tolist()
                for number, part in zip(numbers, parts, strict=True)
            }
    return found


@pytest.mark.parametrize("id_bytes", [2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 50, 1 << 20])
def test_documents_are_those_that_were_packed(id_bytes: int, tokens: int) -> None:
    for seed in range(5):
        documents, rows = made_up(seed, id_bytes)
        assert spooled(rows, batch_tokens=tokens) == dict(enumerate(documents))


def test_documents_of_lost_rows_are_left_out() -> None:
    documents, rows = made_up(1)
    lost = {document for row in (4, 5, 6, 7) for document in rows.index.row(row)[0]}
    found = spooled(rows, lost=(1,))
    assert lost
    assert found == {n: d for n, d in enumerate(documents) if n not in lost}


def test_nothing_but_empty_documents() -> None:
    rows = packed_rows([[], []], [], RowFormat(4, 2))
    assert spooled(rows) == {0: [], 1: []}
    assert spooled(packed_rows([], [], RowFormat(4, 2))) == {}


def test_a_disk_without_space(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows = made_up(2)
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null/none")
    with pytest.raises(StorageError, match="cannot keep documents") as caught:
        spooled(rows)
    assert "TMPDIR" in str(caught.value.cure)


def test_other_rows() -> None:
    _, rows = made_up(2)
    _, others = made_up(3)
    with pytest.raises(CorruptShardError, match=r"here, rows 0 to 3"):
        spooled(rows._replace(records=others.records))


def test_pieces_that_do_not_follow_one_another() -> None:
    document = [*range(10)]
    rows = packed_rows([document], [[(0, 0, 6)], [(0, 6, 4)]], RowFormat(8, 2))
    moved = np.array([0, 5], np.uint32)
    index = dataclasses.replace(rows.index, piece_firsts=moved)
    other = packed_rows([document], [[(0, 0, 6)], [(0, 5, 4)]], RowFormat(8, 2))
    with pytest.raises(CorruptShardError, match=r"follow one another") as caught:
        spooled(other._replace(index=index))
    assert "here, row 1, document 0" in str(caught.value.where)
    assert "token 6 on" in str(caught.value.expected)
