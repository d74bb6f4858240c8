"""How much memory a piece of code takes."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator


class Peak:
    """The most memory that was taken, once the code has run."""

    bytes: int = -1


@contextlib.contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measures the most memory that Python objects in a block take together."""
    peak = Peak()
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
