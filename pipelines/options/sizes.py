"""Sizes on a command line: 256MiB, 1.5GB, 4096."""

from __future__ import annotations

import re

from gristmill.dataset.errors import InputError

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}b": 1000**i for i, p in enumerate("kmgtp", 1)},
    **{f"{p}ib": 1024**i for i, p in enumerate("kmgtp", 1)},
}


def parse_size(text: str) -> int:
    """Returns a size in bytes.

    >>> parse_size("256MiB"), parse_size("1.5 kB"), parse_size("4096")
    (268435456, 1500, 4096)

    Raises:
        InputError: The text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match.group(2) not in _UNITS:
        raise InputError(
            "not a size",
            expected="a number and a unit, such as 256MiB, 1.5GB or 4096",
            got=repr(text),
        )
    return int(float(match.group(1)) * _UNITS[match.group(2)])
