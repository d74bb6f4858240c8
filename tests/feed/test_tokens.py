import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gristmill import loader
from gristmill.dataset.base.errors import DecodeError, InputError


@given(st.data(), st.integers(0, 5), st.integers(1, 9))
def test_tokens_come_back_as_they_were_stored(data, rows, length):
    stored = data.draw(st.sampled_from(["uint8", "uint16", "int16", "int32"]))
    tokens = data.draw(hnp.arrays(stored, (rows, length), elements=st.integers(0, 127)))
    records = [
        row.astype(np.dtype(stored).newbyteorder("<")).tobytes() for row in tokens
    ]
    decoded = loader.TokenDecoder(length=length, stored=stored)(records)
    assert (decoded.dtype, decoded.shape) == ("int32", (rows, length))
    np.testing.assert_array_equal(decoded, tokens)
    decoded[:] = 0  # It can be written to.


@pytest.mark.parametrize(
    ("decoder", "record", "message"),
    [
        (
            loader.TokenDecoder(length=2),
            bytes(7),
            r"number of tokens(.|\n)*record 1 of the batch\n"
            r"  expected: 8 bytes: 2 tokens as int32\n  got:      7 bytes",
        ),
        (
            loader.TokenDecoder(length=2, stored="uint16"),
            b"",
            "expected: 4 bytes: 2 tok",
        ),
    ],
)
def test_errors_name_the_record(decoder, record, message):
    good = bytes(np.dtype(decoder.stored).itemsize * decoder.length)
    with pytest.raises(DecodeError, match=message) as caught:
        decoder([good, record, good])
    assert caught.value.row == 1


@pytest.mark.parametrize("stored", ["uint32", "int64", "float16"])
def test_types_that_int32_cannot_hold_are_refused(stored):
    with pytest.raises(InputError, match="fit into int32"):
        loader.TokenDecoder(length=1, stored=stored)
