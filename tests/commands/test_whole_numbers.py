"""Texts that are whole numbers, and others."""

from __future__ import annotations

import pytest

from gristmill.pipelines.text.printer import whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("7", 7), ("9" * 18, 10**18 - 1), ("0" * 5000 + "12", 12)),
        *(("", None), ("-1", None), ("+1", None), (" 1", None), ("1_0", None)),
        *(("1.0", None), ("\u00b2", None), ("9" * 19, None), ("9" * 5000, None)),
    ],
)
def test_numbers_of_texts(text: str, number: int | None) -> None:
    assert whole_number(text) == number
