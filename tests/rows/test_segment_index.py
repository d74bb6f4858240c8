"""The segment index: small, right about every piece, and readable with numpy alone."""

import collections
import contextlib
import dataclasses
import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import packed_reader
from gristmill.dataset import FormatVersionError, InvalidDatasetError
from gristmill.dataset.base.places import Places, encode_column
from gristmill.dataset.packed.segment_index import HEADER_BYTES, SegmentIndex
from gristmill.transforms.tokens.best_fit import plan_rows


def index_of(rows, places=(), spans=None):
    """Takes (document, first token) of each piece, and the documents of each file."""
    documents, firsts = np.array([p for row in rows for p in row]).reshape(-1, 2).T
    spans = [len(places)] if spans is None else spans
    files = np.repeat(np.arange(len(spans)), spans)
    return SegmentIndex(
        row_ends=np.cumsum([len(row) for row in rows], dtype=np.int64),
        piece_documents=documents.astype(np.uint32),
        piece_firsts=firsts.astype(np.uint32),
        sources=Places(files, np.array(places, np.int64)),
    )


def arrays(index):
    own = (index.row_ends, index.piece_documents, index.piece_firsts)
    return [(a.dtype.str, a.tolist()) for a in (*own, *index.sources)]


def decode(data):
    return SegmentIndex.decode(data, where="x.segments")


# Document 1 fills row 1, and its rest is in row 0; document 3 has no token.
EXAMPLE = index_of(
    [[(0, 0), (1, 16)], [(1, 0)], [(2, 0), (4, 0)]],
    places=[0, 300, 1 << 40, 40, 40],
    spans=[3, 0, 2],
)


@st.composite
def made_up(draw):
    """Draws documents in any rows."""
    counts = draw(st.lists(st.integers(0, 5), max_size=30))
    piece = st.integers(1, draw(st.sampled_from([1, 300, 70_000, 20_000_000])))
    row, rows = st.integers(0, draw(st.integers(1, 40))), collections.defaultdict(list)
    for document, count in enumerate(counts):
        first = 0
        for _ in range(count):
            rows[draw(row)].append((document, first))
            first += draw(piece)
    cuts = sorted(draw(st.lists(st.integers(0, len(counts)), max_size=4)))
    spans = np.diff([0, *cuts, len(counts)]).tolist()
    gap = st.integers(0, draw(st.sampled_from([0, 10, 3_000, 1 << 20, 1 << 50])))
    places = [at for n in spans for at in np.cumsum([draw(gap) for _ in range(n)])]
    return index_of(rows.values(), places, spans)


def test_golden_bytes(tmp_path):
    data = EXAMPLE.encode()
    assert data[:HEADER_BYTES].hex() == (
        "474d5345474d540a0100000060126db6"  # Magic, version, checksum.
        # Documents, pieces, bytes of sources.
        "050000000000000005000000000000004000000000000000"
    )
    # In how many pieces each document is; the rows of pieces; the firsts of later ones.
    columns = [[1, 2, 1, 0, 1], [0, 1, 0, 2, 2], [16]]
    parts = [part for each in columns for part in encode_column(np.array(each))]
    assert data[HEADER_BYTES:] == EXAMPLE.sources.encode() + b"".join(parts)
    (tmp_path / "x").write_bytes(data)
    found = packed_reader.read_segments(str(tmp_path / "x"))
    assert [each.tolist() for each in found] == [held for _, held in arrays(EXAMPLE)]


@given(made_up())
def test_any_index_comes_back(index):
    assert arrays(decode(index.encode())) == arrays(index)


def test_a_few_bytes_a_piece():
    chance = np.random.default_rng(0)
    sizes = np.maximum(chance.lognormal(np.log(458) - 0.6, 1.1, 20_000), 1)
    plan = plan_rows(sizes.astype(np.uint32), length=2048, method="best-fit")
    places = np.cumsum(16 + 22 * sizes.astype(np.int64) // 5)
    index = SegmentIndex(
        row_ends=plan.row_ends,
        piece_documents=plan.documents,
        piece_firsts=plan.firsts,
        sources=Places(np.zeros(20_000, np.int64), places),
    )
    assert len(index.encode()) <= 4.5 * index.pieces
    assert arrays(decode(index.encode())) == arrays(index)


WRONG = {
    "not in order": index_of([[(1, 0), (0, 0)]], [0, 1]),
    "an empty row": index_of([[(0, 0)], []], [0]),
    "a piece twice": index_of([[(0, 0)], [(0, 0)]], [0]),
    "no begin of a document": index_of([[(0, 5)]], [0]),
    "no such document": index_of([[(1, 0)]], [0]),
    "rows of more pieces": dataclasses.replace(EXAMPLE, row_ends=np.array([2, 3, 9])),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_is_no_index_is_not_written(wrong):
    with pytest.raises(ValueError, match="expected"):
        wrong.encode()


def test_every_byte_and_every_length_is_checked():
    data = EXAMPLE.encode()
    flips = [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(len(data))]
    for damaged in (*flips, *(data[:end] for end in range(len(data))), data + b"\0"):
        with pytest.raises((InvalidDatasetError, FormatVersionError)) as caught:
            decode(damaged)
        assert "x.segments" in str(caught.value)
        assert caught.value.cure


@given(st.integers(12, len(EXAMPLE.encode()) - 9), st.binary(min_size=1, max_size=8))
def test_what_fits_its_checksums_and_is_none(at, new):
    """A file that was made on purpose is read, or refused, and nothing else."""
    good = EXAMPLE.encode()
    forged = good[:at] + new + good[at + len(new) :]
    crc = struct.pack("<I", google_crc32c.value(forged[16:]))
    with contextlib.suppress(InvalidDatasetError):
        index = decode(forged[:12] + crc + forged[16:])
        assert arrays(decode(index.encode())) == arrays(index)
