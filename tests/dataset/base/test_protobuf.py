"""Fields of messages, whole and cut short."""

from __future__ import annotations

import struct

import pytest

from gristmill.dataset.base.protobuf import bytes_field, message_fields, varint_field

MESSAGE = (
    *(b"\x08\x96\x01", b"\x12\x03abc", b"\x19" + struct.pack("<q", -2)),
    b"\x25" + struct.pack("<f", 1.5),
)


def test_every_wire_type() -> None:
    assert list(message_fields(b"".join(MESSAGE))) == [
        (1, 0, b"\x96\x01"),
        (2, 2, b"abc"),
        (3, 1, struct.pack("<q", -2)),
        (4, 5, struct.pack("<f", 1.5)),
    ]


def test_encoded_fields() -> None:
    assert (varint_field(1, 150), bytes_field(2, b"abc")) == MESSAGE[:2]
    assert list(message_fields(bytes_field(300, b""))) == [(300, 2, b"")]


@pytest.mark.parametrize("field", MESSAGE)
def test_fields_that_are_cut_short(field: bytes) -> None:
    for length in range(1, len(field)):
        with pytest.raises((ValueError, IndexError)):
            list(message_fields(field[:length]))


@pytest.mark.parametrize("data", [b"\x0b", b"\x00\x01", b"\x0f"])
def test_what_is_no_field(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a protocol buffer message"):
        list(message_fields(data))
