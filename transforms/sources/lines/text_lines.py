"""Lines of text as records."""

from __future__ import annotations

import numpy as np

from gristmill.transforms.sources.lines.parser import (
    Lines,
    Positions,
    check_text,
    newline_ends,
)


class TextLines:
    """Makes a record of each line: its bytes without the newline, empty ones too."""

    format_name = "text"
    sure = True

    def ends(self, data: bytes) -> Positions:
        """See `LineParser`."""
        return newline_ends(data)

    def header_lines(self, lines: Lines, path: str) -> int:
        """See `LineParser`."""
        del lines, path
        return 0

    def records(self, lines: Lines) -> tuple[list[bytes], Positions]:
        """See `LineParser`."""
        check_text(lines)
        if not lines.data:  # Of a file that is a byte order mark alone.
            return [], np.zeros(0, np.int64)
        return split_lines(lines), np.arange(len(lines.ends))

    def next_start(self, data: bytes, *, final: bool) -> int | None:
        """See `LineParser`."""
        del final
        return data.find(b"\n") + 1 or None


def split_lines(lines: Lines) -> list[bytes]:
    """Returns each line without the bytes that end it."""
    data = lines.data
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    records = data.split(b"\n")
    if len(records) > len(lines.ends):
        records.pop()  # What is behind the last newline.
    return records
