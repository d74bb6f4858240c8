"""How much memory a piece of code takes."""

from __future__ import annotations

import contextlib
import pathlib
import resource
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


@contextlib.contextmanager
def limited_memory(more_bytes: int) -> Iterator[None]:
    """Lets this process take only so much more memory, whoever asks for it.

    An allocation beyond it raises MemoryError.
    """
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    taken = pages * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
