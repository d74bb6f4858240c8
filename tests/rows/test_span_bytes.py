"""The spans of messages in packed rows: bytes, ways back, and every damage."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import DecodeError
from gristmill.dataset.packed.row_format import (
    RowBatch,
    RowFormat,
    decode_rows,
    encode_rows,
)
from tests.rows.packed_rows import batch_of, rows_of
from tests.support.conversation_rows import (
    Said,
    Token,
    conversation,
    equal,
    spans_of,
    tokens_of,
)

LENGTH = 12


seeds = st.integers(0, 1 << 32)


def supervised(seed: int) -> tuple[RowBatch, random.Random]:
    """Returns rows, each token of which is in a message or not."""
    chance = random.Random(seed)
    rows = []
    for _ in range(chance.randrange(4)):
        left, row = LENGTH, []
        while left and (not row or chance.random() < 0.6):
            size = chance.randint(1, left)
            first = chance.choice((0, 0, 5))
            row.append((first, [chance.randrange(1 << 16) for _ in range(size)]))
            left -= size
        rows.append(row)
    batch = batch_of(rows)
    weights = chance.random() < 0.5
    documents = [
        conversation(chance, length, weights=weights)
        for length in batch.lengths.tolist()
    ]
    return batch._replace(spans=spans_of(documents)), chance


def by_hand(batch: RowBatch) -> list[bytes]:
    """Returns what stands behind the tokens of each row."""
    found, piece = [], 0
    spans = batch.spans
    assert spans is not None
    for end in batch.row_ends.tolist():
        numbers, heads, weights = [], [], []
        counts = np.diff(spans.ends, prepend=0)[piece:end].tolist()
        numbers += counts
        for number in range(piece, end):
            stop, message = 0, -1
            last = int(spans.ends[number])
            for at in range(last - counts[number - piece], last):
                gap = int(spans.begins[at]) - stop
                step = int(spans.messages[at]) - message
                stop = int(spans.begins[at] + spans.lengths[at])
                message = int(spans.messages[at])
                numbers.append(stop - int(spans.begins[at]))
                head = int(spans.roles[at]) | int(spans.trained[at]) << 3
                if gap < 7 and step in (0, 1):
                    head |= gap << 5 | step << 4
                else:
                    head |= 7 << 5
                    numbers += [gap, -2 * step - 1 if step < 0 else 2 * step]
                heads.append(head)
                if spans.trained[at]:
                    weights.append(spans.weights[at])
        data = b""
        for number in numbers:
            while number > 127:
                data += bytes([number & 127 | 128])
                number >>= 7
            data += bytes([number])
        if any(weight != 1 for weight in weights):
            data += np.array(weights, "<f4").tobytes()
        found.append(data + bytes(heads))
        piece = end
    return found


@given(seeds)
def test_rows_come_back(seed: int) -> None:
    batch, _ = supervised(seed)
    packed = RowFormat(LENGTH)
    plain = encode_rows(packed, batch._replace(spans=None))
    records = encode_rows(packed, batch)
    for record, before, behind in zip(records, plain, by_hand(batch), strict=True):
        assert record[4:] == before[4:] + behind
        word, was = (int.from_bytes(each[:4], "little") for each in (record, before))
        assert word & ~(1 << 29) == was | 1 << 30
    decoded = decode_rows(packed, records)
    assert rows_of(decoded) == rows_of(batch)
    assert equal(decoded.spans, batch.spans if len(batch.row_ends) else None)


USER, ASSISTANT = Said(2, 0, False, 1.0), Said(3, 1, True, 1.0)
ROW: list[Token] = [None, USER, USER, None, ASSISTANT, ASSISTANT, ASSISTANT]


def test_golden_bytes() -> None:
    half = [Said(3, 1, True, 0.5)] * 2
    pieces = [ROW, [None] * 9 + half, [Said(3, 4, True, 1.0)]]
    batch = batch_of([[(0, [1] * len(ROW))], [(0, [2] * 11)], [(5, [3])]])
    found = encode_rows(RowFormat(LENGTH), batch._replace(spans=spans_of(pieces)))
    assert [record.hex() for record in found] == [
        # Pieces and spans; length; tokens; spans of the piece, lengths; bytes of spans.
        "0100004007000000" + "0100" * 7 + "020203323b",
        # With weights, and a span that is far away.
        "010000600b000000" + "0200" * 11 + "010209040000003feb",
        # A piece that does not begin its document, of its message 4.
        "010000c0010000000500000003000101000aeb",
    ]


@settings(max_examples=500)
@given(seeds)
def test_no_bit_of_them_can_change_unseen(seed: int) -> None:
    batch, chance = supervised(seed)
    row_format = RowFormat(LENGTH)
    records = encode_rows(row_format, batch)
    if not records:
        return
    row = chance.randrange(len(records))
    size = len(records[row])
    changed = bytearray(records[row])
    what = chance.choice(["flip", "cut", "add", "drop"])
    if what == "flip":
        changed[chance.randrange(size)] ^= 1 << chance.randrange(8)
    elif what == "cut":
        del changed[chance.randrange(size) :]
    elif what == "add":
        changed += chance.randbytes(chance.randint(1, 9))
    else:
        del changed[chance.randrange(size)]
    records[row] = bytes(changed)
    try:
        found = decode_rows(row_format, records)
    except DecodeError as e:
        if e.row != row:
            raise
        return
    # What is decoded says other things, and has these bytes.
    assert (
        found.spans is None
        or len(records) > 1
        or (encode_rows(row_format, found) == records)
    )
    assert not equal(found.spans, batch.spans) or rows_of(found) != rows_of(batch)


def row_with(behind: str, *, marks: int = 1 << 30, tokens: int = 12) -> bytes:
    """Returns a row of a piece with these bytes behind its tokens."""
    head = (1 | marks).to_bytes(4, "little") + tokens.to_bytes(4, "little")
    return head + b"\1\0" * tokens + bytes.fromhex(behind)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (row_with(""), "counts do not add up"),
        (row_with("00", marks=1 << 29), "counts do not add up"),
        (row_with("", marks=1 << 29), "counts do not add up"),
        (row_with("0d" + "01" * 26), "more spans than tokens"),
        (row_with("01"), "cut short"),
        (row_with("80" * 5), "cut short"),
        (row_with("8000"), "longer way"),
        (row_with("808080808001"), "too large"),
        (row_with("01 ffffffff7f 0b"), "after its piece"),
        (row_with("01 00 0b"), "no token"),
        (row_with("01 0d 0b"), "after its piece"),
        (row_with("01 0c 2b"), "after its piece"),
        (row_with("01 01 01 0b"), "do not add up"),
        (row_with("01 01 07 00 fb"), "two messages"),
        (row_with("01 01 07 eb"), "do not add up"),
        (row_with("01 01 01 02 eb"), "longer way"),
        (row_with("01 01 01 00 eb"), "longer way"),
        (row_with("01 01 07 01 eb"), "no message"),
        (row_with("01 01 0b"), "no message"),
        (row_with("00", marks=3 << 29), "all weights are 1"),
        (row_with("01 01 0000803f 1b", marks=3 << 29), "all weights are 1"),
        (row_with("01 01 000080bf 1b", marks=3 << 29), "not a number above 0"),
        (row_with("01 01 0000c07f 1b", marks=3 << 29), "not a number above 0"),
        (row_with("01 01 0000 1b", marks=3 << 29), "do not add up"),
    ],
)
def test_damaged_spans_are_named(record: bytes, message: str) -> None:
    good = row_with("01 01 1b")
    with pytest.raises(DecodeError, match=message) as raised:
        decode_rows(RowFormat(LENGTH), [good, record, good])
    assert raised.value.row == 1


@given(seeds)
def test_pieces_of_documents(seed: int) -> None:
    chance = random.Random(seed)
    lengths = [chance.randrange(10) for _ in range(chance.randrange(6))]
    documents = [conversation(chance, length) for length in lengths]
    spans = spans_of(documents)
    assert tokens_of(spans, lengths) == documents
    pieces = []
    for number, length in enumerate(lengths):
        some = {chance.randint(0, length) for _ in range(chance.randrange(4))}
        borders = sorted({*some, 0, length})
        pieces += [
            (number, begin, end - begin) for begin, end in itertools.pairwise(borders)
        ]
    chance.shuffle(pieces)
    owners, firsts, sizes = np.array(pieces, np.int64).reshape(-1, 3).T
    cut = spans_of([documents[d] for d in owners]).cut(firsts, sizes)
    expected = [documents[d][f : f + n] for d, f, n in pieces]
    assert tokens_of(cut, sizes.tolist()) == expected
    # Put together again, in the order of the documents.
    order = np.lexsort((firsts, owners))
    again = spans_of([documents[d] for d in owners[order]])
    again = again.cut(firsts[order], sizes[order])
    per_document = np.bincount(owners, minlength=len(lengths))
    whole = again._replace(
        ends=np.append(0, again.ends)[np.cumsum(per_document)],
        begins=(again.begins + firsts[order][again.documents]).astype(np.uint32),
    )
    assert equal(whole.joined(), spans)
