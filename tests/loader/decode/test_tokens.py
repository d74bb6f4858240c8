import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gristmill import loader
from gristmill.dataset.base.errors import DecodeError
from tests.support.examples import tf_example


@given(st.data(), st.integers(0, 5), st.integers(1, 9))
def test_tokens_come_back_as_they_were_stored(data, rows, length):
    stored = data.draw(st.sampled_from(["uint8", "uint16", "int32", "uint32", "int64"]))
    tokens = data.draw(hnp.arrays(stored, (rows, length), elements=st.integers(0, 127)))
    records = [
        row.astype(np.dtype(stored).newbyteorder("<")).tobytes() for row in tokens
    ]
    for dtype in ("int32", "int64", "uint16", stored):
        decoder = loader.TokenDecoder(length=length, dtype=dtype, stored=stored)
        decoded = decoder(records)
        assert (decoded.dtype, decoded.shape) == (dtype, (rows, length))
        np.testing.assert_array_equal(decoded, tokens)
        decoded[:] = 0  # It can be written to.
    same = loader.TokenDecoder(length=length, dtype=stored)
    np.testing.assert_array_equal(same(records), tokens)


def test_tokens_of_an_example():
    decoder = loader.TokenDecoder(length=3, dtype="int32", feature="ids")
    records = [tf_example({"ids": [i, 50_000, 2], "x": [b"y"]}) for i in range(4)]
    decoded = decoder(records)
    assert decoded.dtype == np.int32
    assert decoded.tolist() == [[i, 50_000, 2] for i in range(4)]
    with pytest.raises(DecodeError, match=r"another number of values: 'ids'") as caught:
        decoder([*records, tf_example({"ids": [1]})])
    assert caught.value.row == 4


@pytest.mark.parametrize(
    ("decoder", "record", "message"),
    [
        (
            loader.TokenDecoder(length=2, dtype="int32"),
            bytes(7),
            r"number of tokens(.|\n)*record 1 of the batch\n"
            r"  expected: 8 bytes: 2 tokens as int32\n  got:      7 bytes",
        ),
        (
            loader.TokenDecoder(length=2, stored="uint16"),
            b"",
            "expected: 4 bytes: 2 tok",
        ),
        (
            loader.TokenDecoder(length=2, dtype="int32", stored="uint32"),
            b"\x01\x00\x00\x00\x00\x00\x00\x80",
            r"record 1 of the batch(.|\n)*int32, -2147483648 to 2147483647\n"
            r"  got:      2147483648",
        ),
        (
            loader.TokenDecoder(length=1, dtype="uint32", stored="int32"),
            b"\xff\xff\xff\xff",
            r"uint32, 0 to 4294967295\n  got:      -1",
        ),
        (
            loader.TokenDecoder(length=1, dtype="int64", stored="uint64"),
            b"\xff" * 8,
            r"got:      18446744073709551615",
        ),
    ],
)
def test_errors_name_the_record(decoder, record, message):
    good = bytes(np.dtype(decoder.stored).itemsize * decoder.length)
    with pytest.raises(DecodeError, match=message) as caught:
        decoder([good, record, good])
    assert caught.value.row == 1
