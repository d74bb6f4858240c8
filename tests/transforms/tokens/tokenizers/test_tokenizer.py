"""Tokens that are added before and after texts, against a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Ends,
    add_ends,
    end_to_end,
    without_ends_alone,
)

TEXTS = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), max_size=8)
TOKENS = st.lists(st.integers(0, 9), max_size=2).map(tuple)


def parts(encoded):
    ids, lengths = encoded
    assert ids.dtype == np.uint32
    assert lengths.dtype == np.int64
    assert len(ids) == lengths.sum()
    split = np.split(ids, lengths.cumsum())[: len(lengths)]
    return [part.tolist() for part in split]


@given(TEXTS, TOKENS, TOKENS)
def test_ends_are_added_and_taken(texts, before, after):
    ends = Ends(before, after)
    encoded = end_to_end(texts)
    assert parts(encoded) == texts
    expected = [[*before, *text, *after] if text else [] for text in texts]
    assert parts(add_ends(encoded, ends)) == expected
    everywhere = end_to_end([[*before, *text, *after] for text in texts])
    assert parts(without_ends_alone(everywhere, ends)) == expected
