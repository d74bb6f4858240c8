"""A wait for what another thread or process does, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

# It bounds a hang only: nothing that works comes near.
_HANG_SECONDS = 60.0


def until(condition: Callable[[], object], *, seconds: float = _HANG_SECONDS) -> None:
    """Returns once a condition holds; fails where it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not happen in {seconds} seconds"
        time.sleep(0.005)
