"""The bytes of packed rows, and of their spans of messages: back, and every damage."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import packed_reader
from gristmill.dataset import DecodeError, encode_example
from gristmill.dataset.packed.message_spans import ROLES, MessageSpans
from gristmill.dataset.packed.row_format import (
    MAX_POSITIONS,
    RowFormat,
    decode_rows,
    encode_rows,
)
from tests.rows.packed_rows import (
    Said,
    batch_of,
    conversation,
    equal,
    rows_of,
    some_rows,
    spans_of,
)
from tests.support.told import told

USER, ASSISTANT, HALF = (
    Said(2, 0, False, 1),
    Said(3, 1, True, 1),
    Said(3, 1, True, 0.5),
)


def damaged(record, chance):
    changed = bytearray(record)
    at = chance.randrange(len(changed))
    match chance.choice(["flip", "cut", "add", "drop"]):
        case "flip":
            changed[at] ^= 1 << chance.randrange(8)
        case "cut":
            del changed[at:]
        case "add":
            changed += chance.randbytes(chance.randint(1, 9))
        case "drop":
            del changed[at]
    return bytes(changed)


@given(
    st.integers(0, 1 << 32),
    st.sampled_from(["packed", "example", "chat"]),
    st.sampled_from([1, 2, 12]),
    st.sampled_from([2, 3, 4]),
)
def test_rows_come_back_and_no_byte_can_change_unseen(seed, kind, length, id_bytes):
    chance = random.Random(seed)
    form = RowFormat(length, id_bytes, "example" if kind == "example" else "packed")
    batch = batch_of(rows := some_rows(chance, length, id_bytes))
    if kind == "chat":
        weights = chance.random() < 0.5
        sizes = batch.lengths.tolist()
        said = [conversation(chance, size, weights=weights) for size in sizes]
        batch = batch_of(rows, said)
    found = decode_rows(form, records := encode_rows(form, batch))
    assert rows_of(found) == rows
    assert [a.dtype for a in found[:4]] == [a.dtype for a in batch[:4]]
    assert equal(found.spans, batch.spans if rows else None)
    if not rows or kind == "example":
        return
    row = chance.randrange(len(rows))
    records[row] = damaged(records[row], chance)
    try:
        found = decode_rows(form, records)
    except DecodeError as error:
        assert error.row == row  # noqa: PT017
        return
    assert not equal(found.spans, batch.spans) or rows_of(found) != rows
    if len(records) == 1 and (found.spans is None) == (kind == "packed"):
        assert encode_rows(form, found) == records


@given(st.lists(st.lists(st.sampled_from([None, USER, ASSISTANT, HALF]))))
def test_spans_are_joined_unless_something_is_between(documents):
    single = [
        [(token, 1, *said) for token, said in enumerate(document) if said is not None]
        for document in documents
    ]
    assert equal(MessageSpans.of_documents(single).joined(), spans_of(documents))


GOLDEN = {
    "a piece that does not begin its document": (
        2,
        [(0, [1]), (5, [2, 3])],
        None,
        "0200 0080 0100 0000 0200 0000 0000 0000 0500 0000 0100 0200 0300",
    ),
    "three bytes": (
        3,
        [(0, [0x123456, 0xFF])],
        None,
        "0100 0000 0200 0000 5634 ff00 1200",
    ),
    "four bytes": (
        4,
        [(0, [0x123456, 0xFF])],
        None,
        "0100 0000 0200 0000 5634 ff00 1200 0000",
    ),
    # Pieces and spans; length; tokens; spans of the piece, lengths; bytes of spans.
    "spans": (
        2,
        [(0, [1] * 7)],
        [None, USER, USER, None, *[ASSISTANT] * 3],
        "01000040 07000000 0100010001000100010001000100 020203323b",
    ),
    "weights, and a span that is far away": (
        2,
        [(0, [2] * 11)],
        [None] * 9 + [HALF] * 2,
        f"01000060 0b000000 {'0200' * 11} 010209040000003feb",
    ),
    "a later piece, of message 4": (
        2,
        [(5, [3])],
        [Said(3, 4, True, 1)],
        "010000c0 01000000 05000000 0300 0101000aeb",
    ),
}


@pytest.mark.parametrize(
    ("id_bytes", "row", "said", "expected"), GOLDEN.values(), ids=GOLDEN
)
def test_golden_bytes(id_bytes, row, said, expected):
    batch = batch_of([row], said and [said])
    (record,) = encode_rows(RowFormat(12, id_bytes), batch)
    assert record.hex() == expected.replace(" ", "")
    # The reader that a page has for other programs.
    found = packed_reader.read_row(record, id_bytes=id_bytes)
    assert [(first, ids.tolist()) for first, ids in found] == row
    (spans, *_) = packed_reader.read_spans(record, id_bytes=id_bytes)
    assert not said or [each for each in said if each] == [
        Said(ROLES.index(role), *about)
        for begin, end, role, *about in spans
        for _ in range(begin, end)
    ]


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


LATER = 1 << 31
GOOD = words(LATER | 2, 2, 1, 0, 9) + b"\1\0\2\0\3\0"
ROWS = [
    (b"", "expected: 4 bytes or more\n  got:      0 bytes"),
    (words(0), r"1 to 12 pieces(.|\n)*got:      0"),
    (words(1), "expected: 8 bytes or more"),
    (words(LATER | 1, 1), "expected: 12 bytes or more"),
    (words(LATER - 1, 1), r"1 to 12 pieces(.|\n)*got:      536,870,911"),
    (GOOD[:-1], r"do not add up(.|\n)*26 bytes: 2 pieces, and 3 tokens of 2 byt"),
    (words(1, 1) + b"\0\0\0", r"do not add up(.|\n)*got:      11 bytes"),
    (words(1, 0), "piece 0 of 0 tokens"),
    (words(2, 1, 0) + b"\0\0", "piece 1 of 0 tokens"),
    (words(LATER | 1, 2, MAX_POSITIONS - 1) + bytes(4), r"below 2,147,483,648\n.*2,14"),
    (words(1, 13) + bytes(26), "at most 12 tokens\n  got:      13"),
]
# What stands behind 12 tokens of the only piece, and the marks of the row.
SUPERVISED, WEIGHTED = 1 << 30, 3 << 29
SPANS = [
    ("", SUPERVISED, "counts do not add up"),
    ("0d" + "01" * 26, SUPERVISED, "more spans than tokens"),
    ("01", SUPERVISED, "cut short"),
    ("80" * 5, SUPERVISED, "cut short"),
    ("8000", SUPERVISED, "longer way"),
    ("808080808001", SUPERVISED, "too large"),
    ("01 ffffffff7f 0b", SUPERVISED, "after its piece"),
    ("01 00 0b", SUPERVISED, "no token"),
    ("01 0c 2b", SUPERVISED, "after its piece"),
    ("01 01 01 0b", SUPERVISED, "do not add up"),
    ("01 01 07 00 fb", SUPERVISED, "two messages"),
    ("01 01 01 02 eb", SUPERVISED, "longer way"),
    ("01 01 01 00 eb", SUPERVISED, "longer way"),
    ("01 01 07 01 eb", SUPERVISED, "no message"),
    ("01 01 0b", SUPERVISED, "no message"),
    ("00", WEIGHTED, "all weights are 1"),
    ("01 01 0000803f 1b", WEIGHTED, "all weights are 1"),
    ("01 01 000080bf 1b", WEIGHTED, "not a number above 0"),
    ("01 01 0000c07f 1b", WEIGHTED, "not a number above 0"),
    ("01 01 0000 1b", WEIGHTED, "do not add up"),
]


def spanned(behind, marks, _=""):
    return words(1 | marks, 12) + b"\1\0" * 12 + bytes.fromhex(behind)


@pytest.mark.parametrize(
    ("record", "message"), [*ROWS, *((spanned(*each), each[2]) for each in SPANS)]
)
def test_damaged_rows_are_named(record, message):
    good = [GOOD, spanned("01 01 1b", SUPERVISED)]
    with told(DecodeError, "record 2 of the batch", match=message, row=2):
        decode_rows(RowFormat(12), [*good, record, *good])


def example(inputs, positions, segments):
    values = {"inputs": inputs, "inputs_position": positions, "other": b"ignored"}
    return encode_example(values | {"inputs_segmentation": segments})


EXAMPLES = RowFormat(2, rows="example")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\xff\xff", "not such an example"),
        (encode_example({"inputs": [1, 2]}), "no feature inputs_position"),
        (example([b"a", b"b"], [0, 1], [1, 1]), r"2 values of inputs\n  got:      0"),
        (example([1, 2, 3], [0, 1, 0], [1, 1, 0]), r"another length(.|\n)*2 values"),
        (example([1, 2], [0, 0], [0, 1]), r"segmentation does not fit(.|\n)*\[1 0\]"),
        (example([1, 2], [0, 2], [1, 1]), r"position does not fit(.|\n)*\[0 2\]"),
        (example([1, 70_000], [0, 1], [1, 1]), r"token out of(.|\n)*got:      70000"),
    ],
)
def test_damaged_examples_are_named(record, message):
    good = example([1, 0], [7, 0], [1, 0])
    with told(DecodeError, match=message, row=1):
        decode_rows(EXAMPLES, [good, record])
