"""One feature found fast is the one that the whole example has, or none at all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.example import BYTES, INTS, encode_example, raw_features
from gristmill.transforms.tokens.document_column import OneFeature
from tests.support.examples import FLOATS, INT64S, message

VALUES = st.one_of(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=5), max_size=3),
    st.lists(INT64S, max_size=20),
    st.lists(FLOATS, max_size=5),
)
NAMES = st.sampled_from(["text", "text2", "tex", "", "é", "n" * 127, "n" * 128])


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.sampled_from(["text", "é", "x"]))
def test_it_is_what_the_whole_example_has(features, name):
    record = encode_example(features)
    expected = raw_features(record).get(name.encode())
    found = OneFeature(name).find(record)
    if found is not None:
        assert found == expected
    elif expected is not None and "n" * 128 not in features:
        assert expected.kind not in (BYTES, INTS) or len(expected.parts) != 1


@given(st.randoms(use_true_random=False), st.binary(max_size=200))
def test_damaged_records_give_nothing_else(rng: random.Random, text: bytes):
    record = bytearray(encode_example({"a": [1, 2], "text": text, "z": 0.5}))
    for _ in range(rng.randint(1, 3)):
        record[rng.randrange(len(record))] = rng.choice((0, 1, 10, 18, 26, 127, 255))
    damaged = bytes(record[: rng.randint(0, 2 * len(record))])
    found = OneFeature("text").find(damaged)
    try:
        features = raw_features(damaged)
    except ValueError:
        return  # Another feature may be what is damaged.
    assert found is None or found == features[b"text"]


@pytest.mark.parametrize("last", [0x80, 0xFF])
def test_a_number_that_is_cut_short_is_not_taken(last: int):
    record = encode_example({"ids": [1, 300]})
    assert OneFeature("ids").find(record) is not None
    assert OneFeature("ids").find(record[:-1] + bytes([last])) is None


def test_of_several_the_last_counts():
    def entry(text: bytes) -> bytes:
        value = message(1, message(1, text))
        return message(1, message(1, b"text") + message(2, value))

    record = message(1, entry(b"one") + entry(b"two"))
    assert raw_features(record)[b"text"].parts == [b"two"]
    assert OneFeature("text").find(record) == (BYTES, [b"two"])
    # A name after its value, or twice.
    value = message(2, message(1, message(1, b"three")))
    turned = message(1, message(1, value + message(1, b"text")))
    assert raw_features(turned)[b"text"].parts == [b"three"]
    assert OneFeature("text").find(turned) is None
    twice = message(1, b"a") + value + message(1, b"text")
    assert OneFeature("text").find(message(1, entry(b"") + message(1, twice))) is None
