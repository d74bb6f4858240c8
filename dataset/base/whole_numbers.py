"""Whole numbers in texts that people give."""

from __future__ import annotations

# Python itself refuses texts of over 4,300 digits, and arrays numbers of 64 bits.
_MOST_DIGITS = 18


def whole_number(text: str) -> int | None:
    """Returns the number that a text of decimal digits is, None for another text.

    None also for a number of over 18 digits, which counts nothing.

    >>> whole_number("12"), whole_number("-1"), whole_number("9" * 19)
    (12, None, None)
    """
    if not text.isdecimal() or len(text.lstrip("0")) > _MOST_DIGITS:
        return None
    return int(text[-_MOST_DIGITS:])
