"""Which texts can name a file on a local disk."""

from __future__ import annotations

import os


def is_file_name(text: str) -> bool:
    """Returns whether a file can have a path: all of its characters have bytes."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
