"""The segment index: small, right about every piece, and readable with numpy alone."""

from __future__ import annotations

import contextlib
import dataclasses
import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import packed_reader
from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError
from gristmill.dataset.base.places import Places, encode_column
from gristmill.dataset.packed.segment_index import HEADER_BYTES, SegmentIndex


def sources_of(places, spans) -> Places:
    """Returns sources in files that have so many documents each."""
    files = np.repeat(np.arange(len(spans)), spans)
    return Places(files, np.array(places, np.int64))


def index_of(rows, places=(), spans=None) -> SegmentIndex:
    """Makes an index of rows, each a list of (document, first token)."""
    pieces = [piece for row in rows for piece in row]
    return SegmentIndex(
        row_ends=np.cumsum([len(row) for row in rows], dtype=np.int64),
        piece_documents=np.array([document for document, _ in pieces], np.uint32),
        piece_firsts=np.array([first for _, first in pieces], np.uint32),
        sources=sources_of(places, [len(places)] if spans is None else spans),
    )


def arrays(index: SegmentIndex) -> dict[str, list[int]]:
    return {name: array.tolist() for name, array in arrays_of(index).items()}


def arrays_of(index: SegmentIndex) -> dict[str, np.ndarray]:
    names = ("row_ends", "piece_documents", "piece_firsts")
    return {name: getattr(index, name) for name in names} | index.sources._asdict()


def decode(data: bytes) -> SegmentIndex:
    return SegmentIndex.decode(data, where="x.segments")


def resealed(data: bytes, at: int, new: bytes) -> bytes:
    """Returns data with other bytes somewhere, and a checksum that fits."""
    data = data[:at] + new + data[at + len(new) :]
    crc = struct.pack("<I", google_crc32c.value(data[16:]))
    return data[:12] + crc + data[16:]


# Document 1 fills row 1, and its rest is in row 0; document 3 has no token.
EXAMPLE = index_of(
    [[(0, 0), (1, 16)], [(1, 0)], [(2, 0), (4, 0)]],
    places=[0, 300, 1 << 40, 40, 40],
    spans=[3, 0, 2],
)
GOLDEN = (
    "474d5345474d540a0100000060126db6"  # Magic, version, checksum.
    "050000000000000005000000000000004000000000000000"  # Documents, pieces, sources.
)


@st.composite
def made_up(draw) -> SegmentIndex:
    """Any documents in any rows."""
    counts = draw(st.lists(st.integers(0, 5), max_size=30))
    step = draw(st.sampled_from([1, 300, 70_000, 20_000_000]))
    number = st.integers(1, step)
    firsts = {
        document: np.cumsum([0, *(draw(number) for _ in range(count - 1))]).tolist()
        for document, count in enumerate(counts)
        if count
    }
    most = draw(st.integers(1, 40))
    rows: dict[int, list[tuple[int, int]]] = {}
    for document, places in firsts.items():
        for first in places:
            rows.setdefault(draw(st.integers(0, most)), []).append((document, first))
    cuts = sorted(draw(st.lists(st.integers(0, len(counts)), max_size=4)))
    spans = np.diff([0, *cuts, len(counts)]).tolist()
    gap = st.integers(0, draw(st.sampled_from([0, 10, 3_000, 1 << 20, 1 << 50])))
    places = [
        int(place)
        for span in spans
        for place in np.cumsum([draw(gap) for _ in range(span)])
    ]
    return index_of([sorted(row) for row in rows.values()], places, spans)


def c4_like(documents: int, length: int = 2048) -> SegmentIndex:
    """Returns an index whose documents are in rows as best-fit packing has them.

    Nearly at random: what is left of rows after the long ones decides.
    """
    random = np.random.default_rng(0)
    sizes = np.maximum(random.lognormal(np.log(458) - 0.6, 1.1, documents), 1)
    sizes = sizes.astype(np.int64)
    counts = -(-sizes // length)
    owners = np.repeat(np.arange(documents), counts)
    firsts = length * (
        np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    )
    lengths = np.minimum(length, np.repeat(sizes, counts) - firsts)
    rest = random.permutation(np.flatnonzero(lengths < length))
    rows = np.empty(len(owners), np.int64)
    rows[rest] = np.cumsum(lengths[rest]) // length
    full = lengths == length
    rows[full] = documents + np.arange(full.sum())
    # In the order of the earliest document of each.
    _, earliest, rows = np.unique(rows, return_index=True, return_inverse=True)
    ranks = np.argsort(np.argsort(earliest))
    order = np.lexsort((firsts, owners, ranks[rows]))
    gaps = 16 + 22 * sizes // 5
    return SegmentIndex(
        row_ends=np.cumsum(np.bincount(rows)[np.argsort(earliest)]),
        piece_documents=owners[order].astype(np.uint32),
        piece_firsts=firsts[order].astype(np.uint32),
        sources=sources_of(np.cumsum(gaps) - gaps, [documents]),
    )


class TestContent:
    def test_golden_bytes(self):
        data = EXAMPLE.encode()
        sources = EXAMPLE.sources.encode()
        assert data[:HEADER_BYTES].hex() == GOLDEN
        assert data[HEADER_BYTES:] == b"".join(
            [
                sources,
                *encode_column(
                    np.array([1, 2, 1, 0, 1])
                ),  # In how many pieces each is.
                *encode_column(np.array([0, 1, 0, 2, 2])),
                *encode_column(np.array([16])),
            ]
        )
        assert arrays(decode(data)) == arrays(EXAMPLE)

    @given(made_up())
    def test_any_index_comes_back(self, index):
        back = decode(index.encode())
        assert arrays(back) == arrays(index)
        for name, array in arrays_of(index).items():
            assert arrays_of(back)[name].dtype == array.dtype

    @pytest.mark.parametrize("documents", [20_000, 100_000])
    def test_at_most_6_bytes_a_piece(self, documents: int):
        index = c4_like(documents)
        data = index.encode()
        assert len(data) <= 4.5 * index.pieces
        assert arrays(decode(data)) == arrays(index)

    @pytest.mark.parametrize(
        "wrong",
        [
            index_of([[(1, 0), (0, 0)]], [0, 1]),  # Not in order.
            index_of([[(0, 0)], []], [0]),  # An empty row.
            index_of([[(0, 0), (0, 0)]], [0]),  # A piece twice.
            index_of([[(0, 0)], [(0, 0)]], [0]),
            index_of([[(0, 5)]], [0]),  # The begin of a document is missing.
            index_of([[(1, 0)]], [0]),  # No such document.
            dataclasses.replace(EXAMPLE, row_ends=np.array([2, 3, 9])),
            dataclasses.replace(EXAMPLE, piece_firsts=np.zeros(3, np.uint32)),
        ],
    )
    def test_what_is_no_index_is_not_written(self, wrong):
        with pytest.raises(ValueError, match="expected"):
            wrong.encode()


class TestQueries:
    def test_a_row_has_documents(self):
        documents, firsts = EXAMPLE.row(0)
        assert documents.tolist() == [0, 1]
        assert firsts.tolist() == [0, 16]
        assert EXAMPLE.row(-1)[0].tolist() == [2, 4]
        with pytest.raises(IndexError):
            EXAMPLE.row(3)

    def test_a_document_is_in_rows(self):
        found = EXAMPLE.pieces_of(1)
        assert [array.tolist() for array in found] == [[1, 0], [0, 1], [0, 16]]
        assert EXAMPLE.pieces_of(3).rows.tolist() == []


class TestDamage:
    def test_every_byte_is_checked(self):
        data = EXAMPLE.encode()
        for at in range(len(data)):
            damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            with pytest.raises((InvalidDatasetError, FormatVersionError)) as caught:
                decode(damaged)
            assert "x.segments" in str(caught.value)
            assert caught.value.cure

    def test_every_length_is_checked(self):
        data = EXAMPLE.encode()
        for end in range(len(data)):
            with pytest.raises(InvalidDatasetError):
                decode(data[:end])
        with pytest.raises(InvalidDatasetError):
            decode(data + b"\0")

    @given(st.data())
    def test_what_fits_its_checksums_and_is_none(self, data):
        """A file that was made on purpose is read, or refused, and nothing else."""
        good = EXAMPLE.encode()
        at = data.draw(st.integers(12, len(good) - 1))
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        new = data.draw(st.binary(min_size=size, max_size=size))[: len(good) - at]
        forged = resealed(good, at, new)
        with contextlib.suppress(InvalidDatasetError):
            index = decode(forged)
            assert arrays(decode(index.encode())) == arrays(index)


def test_the_example_reads_it(tmp_path):
    (tmp_path / "x").write_bytes(EXAMPLE.encode())
    found = packed_reader.read_segments(str(tmp_path / "x"))
    assert [column.tolist() for column in found] == [*arrays(EXAMPLE).values()]
