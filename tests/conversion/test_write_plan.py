"""Where a record goes: keys in their order, and hashes that never change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.writing.write_split import (
    content_hash,
    encode_key,
)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_integer_keys_sort_as_numbers(a: int, b: int) -> None:
    assert (encode_key(a) < encode_key(b)) == (a < b)


@given(st.text(max_size=5), st.text(max_size=5))
def test_text_keys_sort_by_code_points(a: str, b: str) -> None:
    assert (encode_key(a) < encode_key(b)) == (a < b)


@pytest.mark.parametrize("key", [1 << 63, None, 1.5, (1,)])
def test_what_is_no_key(key: Any) -> None:
    with pytest.raises(InputError, match="key cannot decide"):
        encode_key(key)


def test_content_hash_is_fixed_for_ever() -> None:
    """Other hashes would give other bytes for the same records."""
    assert content_hash(b"gristmill").hex() == "60b886e3437de9315f45ef1ea77d7ad0"
