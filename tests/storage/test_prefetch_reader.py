"""Reading ranges ahead; test_gcs.py does it with a server."""

from __future__ import annotations

import itertools
import random
import threading

from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.storage.base import Content
from gristmill.dataset.storage.prefetch_reader import PrefetchReader

DATA = random.Random(1).randbytes(100)


@given(
    size=st.integers(0, 60),
    block=st.integers(1, 20),
    offset=st.integers(0, 60),
    end=st.none() | st.integers(0, 70),
    reads=st.lists(st.integers(0, 25), max_size=20),
    known=st.none() | st.just("7"),
)
def test_reads_the_object(
    size: int,
    block: int,
    offset: int,
    end: int | None,
    reads: list[int],
    known: str | None,
) -> None:
    data = DATA[:size]
    asked: list[tuple[int, int]] = []

    def fetch(begin: int, stop: int, version: str | None) -> Content:
        assert version == ("7" if asked else known)
        assert begin < stop <= begin + block
        asked.append((begin, stop))
        return Content(data[begin:stop], "7", size)

    options = {"offset": offset, "end": end, "block_bytes": block, "version": known}
    with PrefetchReader(fetch, **options) as reader:
        got = b"".join(reader.read(count) for count in reads)
        assert data[offset:].startswith(got)
        read_to = offset + len(got)
        got += reader.read()
    assert got == data[offset:]
    # Nothing twice, nothing left out.
    assert all(a[1] == b[0] for a, b in itertools.pairwise(sorted(asked)))
    assert read_to <= max(size, offset)


def test_a_known_range_is_requested_at_once() -> None:
    """With version and end known, the second request need not wait for the first."""
    barrier = threading.Barrier(4)

    def fetch(begin: int, stop: int, version: str | None) -> Content:
        if begin < 40:
            barrier.wait(60)
        return Content(DATA[begin:stop], "7", len(DATA))

    with PrefetchReader(fetch, end=100, version="7", block_bytes=10) as reader:
        assert reader.read() == DATA
