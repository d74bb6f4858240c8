"""The bytes of packed rows, there and back, and every way to damage them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.dataset.base.example import encode_example
from gristmill.dataset.packed.row_format import (
    MAX_POSITIONS,
    RowFormat,
    decode_rows,
    encode_rows,
)
from tests.rows.packed_rows import Piece, batch_of, rows_of, some_rows


def packed_by_hand(row: list[Piece], id_bytes: int) -> bytes:
    later = any(first for first, _ in row)
    words = [len(row) | later << 31, *(len(ids) for _, ids in row)]
    words += [first for first, _ in row] if later else []
    ids = [token for _, piece in row for token in piece]
    data = struct.pack(f"<{len(words)}I", *words)
    data += struct.pack(f"<{len(ids)}H", *(token & 0xFFFF for token in ids))
    if id_bytes > 2:
        kind = "B" if id_bytes == 3 else "H"
        data += struct.pack(f"<{len(ids)}{kind}", *(token >> 16 for token in ids))
    return data


def example_by_hand(row: list[Piece], length: int) -> bytes:
    ids, positions, segments = [], [], []
    for number, (first, piece) in enumerate(row, 1):
        ids += piece
        positions += range(first, first + len(piece))
        segments += [number] * len(piece)
    padding = [0] * (length - len(ids))
    return encode_example(
        {
            "inputs": ids + padding,
            "inputs_position": positions + padding,
            "inputs_segmentation": segments + padding,
        }
    )


@given(st.data(), st.sampled_from([1, 2, 9]), st.sampled_from([2, 3, 4]))
def test_rows_come_back(data, length, id_bytes):
    rows = data.draw(some_rows(length, id_bytes))
    batch = batch_of(rows)
    packed = RowFormat(length, id_bytes)
    records = encode_rows(packed, batch)
    assert records == [packed_by_hand(row, id_bytes) for row in rows]
    example = RowFormat(length, id_bytes, "example")
    examples = encode_rows(example, batch)
    assert examples == [example_by_hand(row, length) for row in rows]
    for row_format, encoded in ((packed, records), (example, examples)):
        decoded = decode_rows(row_format, encoded)
        assert rows_of(decoded) == rows
        for given_array, found in zip(batch[:4], decoded[:4], strict=True):
            assert found.dtype == given_array.dtype


ROWS = [[(0, [7, 0, 65_535])], [(0, [1]), (5, [2, 3])]]


def test_golden_bytes():
    assert [
        record.hex(" ", 2) for record in encode_rows(RowFormat(4), batch_of(ROWS))
    ] == [
        "0100 0000 0300 0000 0700 0000 ffff",
        "0200 0080 0100 0000 0200 0000 0000 0000 0500 0000 0100 0200 0300",
    ]
    rows = [[(0, [0x123456, 0xFF])]]
    (record,) = encode_rows(RowFormat(4, 3), batch_of(rows))
    assert record.hex(" ", 2) == "0100 0000 0200 0000 5634 ff00 1200"
    (record,) = encode_rows(RowFormat(4, 4), batch_of(rows))
    assert record.hex(" ", 2) == "0100 0000 0200 0000 5634 ff00 1200 0000"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length of packed rows is out of range"),
        ({"length": 8, "id_bytes": 1}, r"id_bytes(.|\n)*expected: 2, 3 or 4"),
        ({"length": 8, "rows": "json"}, r"rows of packed(.|\n)*got:      'json'"),
    ],
)
def test_formats_that_make_no_sense(options, message):
    with pytest.raises(InputError, match=message):
        RowFormat(**options)


def test_examples_hold_ids_of_four_bytes_and_no_more():
    wide = RowFormat(1, 4, "example")
    batch = batch_of([[(0, [0xFFFFFFFF])]])
    assert rows_of(decode_rows(wide, encode_rows(wide, batch))) == rows_of(batch)
    with pytest.raises(DecodeError, match=r"token out of(.|\n)*got:      4294967296"):
        decode_rows(wide, [example([1 << 32], [0], [1])])


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


LATER = 1 << 31
GOOD = packed_by_hand([(0, [1, 2]), (9, [3])], 2)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"", r"cut short(.|\n)*expected: 4 bytes or more\n  got:      0 bytes"),
        (b"\x01\0\0", r"expected: 4 bytes or more\n  got:      3 bytes"),
        (words(0), r"1 to 4 pieces(.|\n)*got:      0"),
        (words(LATER), r"1 to 4 pieces(.|\n)*got:      0"),
        (words(1), r"cut short(.|\n)*expected: 8 bytes or more"),
        (words(LATER | 1, 1), r"cut short(.|\n)*expected: 12 bytes or more"),
        (words(LATER - 1, 1), r"1 to 4 pieces(.|\n)*got:      536,870,911"),
        (GOOD[:-1], r"do not add up(.|\n)*26 bytes: 2 pieces, and 3 tokens of 2 byt"),
        (GOOD + b"\0\0", r"do not add up(.|\n)*got:      28 bytes"),
        (words(1, 1) + b"\0\0\0", r"do not add up(.|\n)*got:      11 bytes"),
        (words(1, 0), r"piece without tokens(.|\n)*piece 0 of 0 tokens"),
        (words(2, 1, 0) + b"\0\0", r"piece without tokens(.|\n)*piece 1 of 0 tokens"),
        (
            words(LATER | 1, 2, MAX_POSITIONS - 1) + b"\0\0\0\0",
            r"position out of range(.|\n)*below 2,147,483,648\n.* 2,147,483,647",
        ),
        (
            words(LATER | 1, 2, 0xFFFFFFFF) + b"\0\0\0\0",
            r"position out of range(.|\n)*position 4,294,967,295",
        ),
        (words(1, 5) + bytes(10), r"longer than(.|\n)*at most 4 tokens\n  got:      5"),
    ],
)
def test_damaged_rows_are_named(record, message):
    good = packed_by_hand([(0, [1, 2, 3, 4])], 2)
    with pytest.raises(DecodeError, match=message) as caught:
        decode_rows(RowFormat(4), [good, GOOD, record, good])
    assert caught.value.row == 2
    assert "record 2 of the batch" in str(caught.value)


@pytest.mark.parametrize("id_bytes", [2, 3, 4])
def test_rows_of_other_tokens_are_refused(id_bytes):
    (record,) = encode_rows(RowFormat(4, id_bytes), batch_of([[(0, [1, 2, 3])]]))
    for other in {2, 3, 4} - {id_bytes}:
        with pytest.raises(DecodeError, match=f"3 tokens of {other} bytes"):
            decode_rows(RowFormat(4, other), [record])


@given(st.data())
def test_no_damage_goes_past_the_checks(data):
    # What decodes is a row: it encodes to the same bytes.
    record = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, 19))] = data.draw(st.integers(0, 255))
    record = record[: data.draw(st.integers(0, len(record)))] or record
    try:
        batch = decode_rows(RowFormat(4), [bytes(record)])
    except DecodeError:
        return
    (again,) = encode_rows(RowFormat(4), batch)
    if batch.firsts.any() or record[3] < 0x80:
        assert again == record


def example(
    inputs: object, positions: object, segments: object, **more: object
) -> bytes:
    return encode_example(
        {
            "inputs": inputs,
            "inputs_position": positions,
            "inputs_segmentation": segments,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"", "not such an example(.|\n)*no feature inputs"),
        (b"\xff\xff", "not such an example"),
        (encode_example({"inputs": [1, 2]}), "no feature inputs_position"),
        (example([b"a", b"b"], [0, 1], [1, 1]), r"2 values of inputs\n  got:      0"),
        (example([1, 2, 3], [0, 1, 0], [1, 1, 0]), r"another length(.|\n)*2 values"),
        (example([1, 2], [0, 1], [1, 1, 0]), r"2 values of inputs_segmentation"),
        (example([1, 2], [0, 0], [0, 0]), r"segmentation does not fit(.|\n)*\[0 0\]"),
        (example([1, 2], [0, 0], [0, 1]), r"segmentation does not fit(.|\n)*\[1 0\]"),
        (example([1, 2], [0, 0], [1, 3]), r"segmentation does not fit(.|\n)*\[1 2\]"),
        (example([1, 2], [0, 0], [2, 1]), r"segmentation does not fit"),
        (example([1, 2], [0, 0], [1, -1]), r"not such an example"),
        (example([1, -2], [0, 1], [1, 1]), r"not such an example"),
        (example([1, 2], [-1, 0], [1, 1]), r"not such an example"),
        (example([1, 2], [0, 2], [1, 1]), r"position does not fit(.|\n)*\[0 2\]"),
        (example([1, 2], [2**31 - 1, 2**31], [1, 1]), r"position out of range"),
        (example([1, 70_000], [0, 1], [1, 1]), r"token out of(.|\n)*got:      70000"),
        (example([1, 9], [0, 0], [1, 0]), r"inputs does not fit(.|\n)*\[1 9\]"),
        (example([1, 0], [0, 1], [1, 0]), r"position does not fit"),
    ],
)
def test_damaged_examples_are_named(record, message):
    good = example([1, 0], [7, 0], [1, 0], other=b"ignored")
    with pytest.raises(DecodeError, match=message) as caught:
        decode_rows(RowFormat(2, rows="example"), [good, record])
    assert caught.value.row == 1
