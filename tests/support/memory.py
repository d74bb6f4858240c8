"""How much memory a piece of code takes, and how a process takes less."""

import contextlib
import ctypes
import pathlib
import resource
import sys
import tracemalloc

_libc = ctypes.CDLL(None)
_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h.


def share_heaps():
    """Lets all threads from here on allocate from two heaps, not each from its own.

    Tests start thousands of threads, and what lies free in one's heap serves no other.
    """
    if hasattr(_libc, "mallopt"):  # Of glibc.
        _libc.mallopt(_ARENA_MAX, 2)


def give_back():
    """Gives the system what the process has freed."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


class Peak:
    """The most memory that was taken, once the code has run."""

    bytes: int = -1


@contextlib.contextmanager
def peak_memory():
    """Measures the most memory that Python objects in a block take together."""
    peak = Peak()
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


@contextlib.contextmanager
def limited_memory(more_bytes):
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
