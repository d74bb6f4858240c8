"""A finding of `gristmill doctor`: what was seen, why it matters, and the cure."""

from __future__ import annotations

import dataclasses
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a check saw.

    Attributes:
        level: `error` where something will fail, `warning` where it may, or is slow.
        seen: What was seen.
        why: Why it matters, "" where all is well.
        cure: What to do, a command where there is one; "" where all is well.
        check: Name of the check.
    """

    level: Level
    seen: str
    why: str = ""
    cure: str = ""
    check: str = ""


def ok(seen: str) -> Finding:
    """Returns a finding of what is well."""
    return Finding(level="ok", seen=seen)


def warning(seen: str, *, why: str, cure: str) -> Finding:
    """Returns a finding of what may fail, or is slow."""
    return Finding(level="warning", seen=seen, why=why, cure=cure)


def error(seen: str, *, why: str, cure: str) -> Finding:
    """Returns a finding of what will fail."""
    return Finding(level="error", seen=seen, why=why, cure=cure)
