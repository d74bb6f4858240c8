"""The packer of rows: every token of every document is in them, once."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from gristmill.transforms.tokens.documents import Documents
from gristmill.transforms.tokens.row_packer import RowPacker
from tests.support.document_rows import sources_at
from tests.support.memory import peak_memory

METHODS = ("best-fit", "concat", "none")
DOCUMENTS = [[1, 2, 3], list(range(10, 31)), [], [4] * 8, [5, 6], [7, 8]]


def options(vocabulary_size: int = 60_000, **fields: Any) -> PackOptions:
    spec = TokenizerSpec(
        kind="ids",
        digest="",
        library="",
        vocabulary_size=vocabulary_size,
    )
    return PackOptions(found=spec, **{"length": 8} | fields)


def as_documents(
    documents: Sequence[Sequence[int]], *, special_tokens: int = 0, last: int = 0
) -> Documents:
    ids = np.array([token for document in documents for token in document], np.uint32)
    lengths = np.array([*map(len, documents)], np.int64)
    return Documents(ids, lengths, 10 * len(documents), special_tokens, last)


def packer_of(
    documents: Sequence[Sequence[int]],
    directory: pathlib.Path,
    given: PackOptions | None = None,
) -> RowPacker:
    """Returns a packer that has these documents, added in two parts."""
    packer = RowPacker(given or options(), directory=str(directory))
    half = len(documents) // 2
    packer.add(as_documents(documents[:half]), sources_at(range(0, 100 * half, 100)))
    rest = documents[half:]
    packer.add(as_documents(rest), sources_at(range(0, 100 * len(rest), 100)))
    return packer


def row_lists(packer: RowPacker) -> list[bytes]:
    return [row for rows in packer.rows() for row in rows]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("best-fit", [[1, 2, 3, *range(26, 31)], range(10, 18), range(18, 26)]),
        ("concat", [[1, 2, 3, *range(10, 15)], range(15, 23), range(23, 31)]),
        ("none", [[1, 2, 3], range(10, 18)]),
    ],
)
@pytest.mark.parametrize("rows", ["packed", "example"])
def test_rows(
    tmp_path: pathlib.Path, method: str, expected: list[Sequence[int]], rows: str
) -> None:
    given = options(method=method, rows=rows)
    with packer_of(DOCUMENTS, tmp_path, given) as packer:
        records = row_lists(packer)
    row_format = RowFormat(8, 2, rows)
    tokens = [decode_rows(row_format, [record]).tokens.tolist() for record in records]
    assert tokens[: len(expected)] == [*map(list, expected)]
    last = [[5, 6, 7, 8]] if method != "none" else [[5, 6], [7, 8]]
    assert tokens[len(expected) :] == [[4] * 8, *last]


def test_counts_and_segments(tmp_path: pathlib.Path) -> None:
    with packer_of(DOCUMENTS, tmp_path) as packer:
        row_lists(packer)
        counts, index = packer.counts(), packer.segments()
    assert counts == PackedCounts(
        documents=5,
        empty_documents=1,
        tokens=36,
        pieces=7,
        padding_tokens=4,
        most_pieces=2,
        text_bytes=60,
    )
    assert index.row_ends.tolist() == [2, 3, 4, 5, 7]
    assert index.piece_documents.tolist() == [0, 1, 1, 1, 2, 3, 4]
    assert index.piece_firsts.tolist() == [0, 16, 0, 8, 0, 0, 0]
    # Documents without a token have no number.
    assert index.sources.places.tolist() == [0, 100, 0, 100, 200]
    assert index.sources.files.tolist() == [0, 0, 0, 0, 0]
    decoded = SegmentIndex.decode(index.encode(), where="x")
    assert np.array_equal(decoded.piece_documents, index.piece_documents)


@pytest.mark.parametrize(
    ("method", "truncate"), [("best-fit", True), ("concat", True), ("none", False)]
)
def test_truncated_documents(
    tmp_path: pathlib.Path, method: str, truncate: bool
) -> None:
    """A document loses what is beyond a row, and with it what was added at its end."""
    added = [1, 9, 9]  # Before and after each.
    given = options(method=method, truncate=truncate)
    documents = [[1, *document, 9, 9] for document in ([2], [3] * 6, [4] * 20)]
    with RowPacker(given, directory=str(tmp_path)) as packer:
        part = as_documents(documents, special_tokens=3 * len(added), last=2)
        packer.add(part, sources_at(range(3)))
        records = row_lists(packer)
        counts = packer.counts()
    assert counts.truncated_documents == 2
    assert counts.truncated_tokens == 1 + 15
    assert counts.special_tokens == 9 - 1 - 2
    assert counts.tokens == 4 + 8 + 8
    rows = [decode_rows(RowFormat(8), [record]).tokens.tolist() for record in records]
    tokens = sorted(token for row in rows for token in row)
    assert tokens == [1] * 3 + [2] + [3] * 6 + [4] * 7 + [9] * 3


@pytest.mark.parametrize(("size", "id_bytes"), [(2**16, 2), (2**24, 3), (2**32, 4)])
def test_the_largest_ids(tmp_path: pathlib.Path, size: int, id_bytes: int) -> None:
    with packer_of([[size - 1, 0]], tmp_path, options(vocabulary_size=size)) as packer:
        (record,) = row_lists(packer)
    row = decode_rows(RowFormat(8, id_bytes), [record])
    assert row.tokens.tolist() == [size - 1, 0]


def join(
    records: list[bytes], index: SegmentIndex, row_format: RowFormat
) -> list[list[int]]:
    """Returns the tokens of each document, joined from its pieces."""
    found: list[dict[int, list[int]]] = [{} for _ in range(index.documents)]
    for number, record in enumerate(records):
        row = decode_rows(row_format, [record])
        documents, firsts = index.row(number)
        assert firsts.tolist() == row.firsts.tolist()
        parts = np.split(row.tokens, np.cumsum(row.lengths)[:-1])
        for document, first, part in zip(documents, firsts, parts, strict=True):
            assert found[document].setdefault(int(first), part.tolist())
    joined = []
    for pieces in found:
        tokens: list[int] = []
        for first in sorted(pieces):
            assert first == len(tokens)
            tokens += pieces[first]
        joined.append(tokens)
    return joined


@given(
    st.lists(st.lists(st.integers(0, 2**24 - 1), max_size=30), max_size=25),
    st.sampled_from(METHODS),
    st.booleans(),
    st.integers(1, 5),
)
def test_any_documents_in_batches_of_any_size(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    method: str,
    truncate: bool,
    batch: int,
) -> None:
    directory = tmp_path_factory.getbasetemp()
    given = options(vocabulary_size=2**24, method=method, truncate=truncate)
    with packer_of(documents, directory, given) as packer:
        expected = row_lists(packer)
        counts = packer.counts()
    with RowPacker(given, directory=str(directory)) as packer:
        for begin in range(0, len(documents), batch):
            part = documents[begin : begin + batch]
            packer.add(as_documents(part), sources_at(range(begin, begin + len(part))))
        records = row_lists(packer)
        assert records == expected
        assert packer.counts() == counts
        joined = join(records, packer.segments(), RowFormat(8, 3))
    limit = 8 if truncate or method == "none" else 30
    assert joined == [document[:limit] for document in documents if document]
    assert counts.tokens == sum(min(len(d), limit) for d in documents)
    assert counts.tokens + counts.truncated_tokens == sum(map(len, documents))
    capacity = 8 * len(records)
    assert counts.tokens + counts.padding_tokens == capacity


@pytest.mark.slow
def test_many_documents_in_little_memory(tmp_path: pathlib.Path) -> None:
    """Memory grows with documents, by little, and not with tokens."""
    part = as_documents([[7] * 120] * 1000)
    records: list[list[bytes]] = []
    with (
        peak_memory() as peak,
        RowPacker(options(length=2048), directory=str(tmp_path)) as packer,
    ):
        for number in range(100):
            packer.add(part, sources_at(range(1000 * number, 1000 * (number + 1))))
        for rows in packer.rows():
            if len(records) < 2:
                records.append(rows)
    counts = packer.counts()
    assert counts.documents == 100_000
    # 17 of 120 tokens in each row.
    assert counts.padding_tokens == -(-100_000 // 17) * 2048 - 120 * 100_000
    assert peak.bytes < 100_000 * 28 + (12 << 20)
