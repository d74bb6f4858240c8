"""Finding the damaged ones among chunks that were decoded together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from gristmill.dataset.errors import (
    CorruptShardError,
    GristmillError,
    TransposedChunkError,
)

# What decoding a chunk raises.
CHUNK_ERRORS: tuple[type[GristmillError], ...] = (
    CorruptShardError,
    TransposedChunkError,
)

E = TypeVar("E", bound=Exception)


def damaged_chunks(
    count: int, decode: Callable[[int], object], *, errors: tuple[type[E], ...]
) -> Iterator[tuple[int, E]]:
    """Decodes chunks one at a time, and yields those that cannot be decoded.

    Args:
        count: Number of chunks.
        decode: Decodes chunk 0, 1, ... of them.
        errors: What `decode` raises for a damaged chunk.

    Yields:
        The place of a chunk among them, and its error.
    """
    for chunk in range(count):
        try:
            decode(chunk)
        except errors as error:
            yield chunk, error
