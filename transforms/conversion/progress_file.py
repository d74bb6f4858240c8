"""The progress of a shard, for other processes of this machine."""

from __future__ import annotations

import os
import time
from typing import Protocol


class Progress(Protocol):
    """Progress callback: called with what was read of a shard so far."""

    def __call__(self, records: int, raw_bytes: int) -> None:
        """Takes the number of records, and their bytes."""


class ProgressFile:
    """Keeps the progress of a shard in a small file, for other processes to read.

    Args:
        path: The file, overwritten twice a second at most.
    """

    def __init__(self, path: str):
        self._path = path
        self._next_seconds = 0.0

    def __call__(self, records: int, raw_bytes: int) -> None:
        """See `Progress`."""
        now = time.monotonic()
        if now >= self._next_seconds:
            self._next_seconds = now + 0.5
            temporary = f"{self._path}.{os.getpid()}"
            with open(temporary, "w") as file:
                file.write(f"{records} {raw_bytes}")
            os.replace(temporary, self._path)
