"""Varints, one and many, whole and cut short."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.varints import (
    decode_varints,
    encode_int64s,
    encode_varint,
    encode_varints,
    message_fields,
    varint_at,
    varints_at,
)
from tests.storage.chunks import varint


class TestVarints:
    @given(st.lists(st.integers(0, 2**63 - 1)))
    def test_round_trip(self, values):
        data = np.frombuffer(b"".join(map(varint, values)), np.uint8)
        assert decode_varints(data).tolist() == values

    @given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300)))
    def test_encoded(self, values):
        encoded = list(map(varint, values))
        assert list(map(encode_varint, values)) == encoded
        data, lengths = encode_varints(np.array(values, np.int64))
        assert data.tobytes() == b"".join(encoded)
        assert lengths.tolist() == list(map(len, encoded))

    @given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)))
    def test_encoded_with_their_signs(self, values):
        encoded = b"".join(varint(value % 2**64) for value in values)
        assert encode_int64s(np.array(values, np.int64)) == encoded

    @given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
    def test_from_given_places(self, values):
        encoded = [varint(value) for value in values]
        data = np.frombuffer(b"".join(encoded), np.uint8)
        ends = np.cumsum([len(item) for item in encoded])
        begins = ends - [len(item) for item in encoded]
        got, after = varints_at(data, begins[::-1])
        assert got.tolist() == values[::-1]
        assert after.tolist() == ends[::-1].tolist()

    @given(st.integers(0, 2**63 - 1), st.binary(max_size=3))
    def test_one_by_itself(self, value: int, before: bytes):
        data = before + varint(value) + b"\x80"
        got = varint_at(data, len(before))
        assert got == (value, len(data) - 1)
        assert varint_at(memoryview(data), len(before), bits=64) == got
        with pytest.raises(IndexError):
            varint_at(data, len(data) - 1)

    @pytest.mark.parametrize("value", [1 << 63, (1 << 64) - 1])
    def test_one_of_64_bits(self, value: int):
        data = varint(value)
        assert varint_at(data, 0, bits=64) == (value, 10)
        assert varint_at(data[:-1] + b"\x7f", 0, bits=64)[0] < 1 << 64
        with pytest.raises(ValueError, match="varint"):
            varint_at(data, 0)
        with pytest.raises(ValueError, match="varint"):
            varint_at(b"\x80" * 10 + b"\x01", 0, bits=64)

    @pytest.mark.parametrize(
        "data", [b"\x80", b"\x01\x80", b"\xff" * 9, varint(1 << 63), varint(1 << 70)]
    )
    def test_bad_ones_are_refused(self, data: bytes):
        with pytest.raises(ValueError, match="varint"):
            decode_varints(np.frombuffer(data, np.uint8))


MESSAGE = (
    *(b"\x08\x96\x01", b"\x12\x03abc", b"\x19" + struct.pack("<q", -2)),
    b"\x25" + struct.pack("<f", 1.5),
)


@pytest.mark.parametrize("field", MESSAGE)
def test_fields_that_are_cut_short(field: bytes) -> None:
    for length in range(1, len(field)):
        with pytest.raises((ValueError, IndexError)):
            list(message_fields(field[:length]))


@pytest.mark.parametrize("data", [b"\x0b", b"\x00\x01", b"\x0f"])
def test_what_is_no_field(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a protocol buffer message"):
        list(message_fields(data))
