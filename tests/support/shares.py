"""Shares of many cases: some always run, and all of them in a soak."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(every: int, cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Returns cases for `pytest.mark.parametrize`, all but one in `every` as soaks.

    For a product of two lists of values, the last list is to be no shorter than `every`
    and no multiple of it: then each value of the first is in a case that always runs.
    """
    return [
        pytest.param(*case, marks=[pytest.mark.soak] * (number % every > 0))
        for number, case in enumerate(cases)
    ]
