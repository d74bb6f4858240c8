"""Fetching the next ranges of input files while one is read."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator

from gristmill.transforms.sources.tfrecord_range import RangeReader

# How much of the ranges after the one that is read: files can be small.
_AHEAD_BYTES = 4 << 20
_AHEAD_RANGES = 16


def opened_ahead(readers: Iterable[RangeReader]) -> Iterator[RangeReader]:
    """Yields readers; those after them fetch already, where the storage is remote.

    Memory: at most 8 MiB for what is fetched ahead.

    Args:
        readers: To be used up one after the other.
    """
    source = iter(readers)
    ready = deque(itertools.islice(source, 1))
    ahead_bytes = 0
    for first in ready:
        ahead_bytes += first.open_ahead()
    while ready:
        reader = ready.popleft()
        ahead_bytes -= reader.ahead_bytes
        while ahead_bytes < _AHEAD_BYTES and len(ready) < _AHEAD_RANGES:
            following = next(source, None)
            if following is None:
                break
            ahead_bytes += following.open_ahead()
            ready.append(following)
        yield reader
