"""The pass over a file that is kept from one of its ranges to the next."""

from __future__ import annotations

from typing import Any, Protocol

from gristmill.transforms.planning.shard_plan import SourceRange


class _Pass(Protocol):
    def close(self) -> None: ...


class KeptPass:
    """Keeps the pass over a compressed file or a row group, from range to range."""

    def __init__(self) -> None:
        self._kept: _Pass | None = None
        self._file = -1
        self._reached = 0, 0

    def has(self, source: SourceRange) -> bool:
        """Returns whether the kept pass has not yet passed the start of a range."""
        begin = source.begin_bytes, source.skip_records
        return source.file_index == self._file and self._reached <= begin

    def take(self, source: SourceRange) -> Any:
        """Returns the pass in which a range can be read, None if there is none."""
        if not self.has(source):
            return None
        kept, self._kept, self._file = self._kept, None, -1
        return kept

    def keep(self, done: _Pass, source: SourceRange) -> None:
        """Keeps a pass in which a range was read."""
        self.close()
        self._kept, self._file = done, source.file_index
        self._reached = source.end_bytes, source.extra_records

    def close(self) -> None:
        """Closes the file of the pass that is kept."""
        if self._kept is not None:
            self._kept.close()
        self._kept, self._file = None, -1
