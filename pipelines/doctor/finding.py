"""A finding of `gristmill doctor`: an observation, why it matters, and the cure."""

from __future__ import annotations

import dataclasses
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One observation of a check.

    Attributes:
        level: `error` if something will fail, `warning` if it may, or is slow.
        seen: What was seen.
        why: Why it matters, "" if all is well.
        cure: What to do, a command if there is one; "" if all is well.
        check: Name of the check.
    """

    level: Level
    seen: str
    why: str = ""
    cure: str = ""
    check: str = ""


def ok(seen: str) -> Finding:
    """Returns a finding that all is well."""
    return Finding(level="ok", seen=seen)


def warning(seen: str, *, why: str, cure: str) -> Finding:
    """Returns a finding that something may fail, or is slow."""
    return Finding(level="warning", seen=seen, why=why, cure=cure)


def error(seen: str, *, why: str, cure: str) -> Finding:
    """Returns a finding that something will fail."""
    return Finding(level="error", seen=seen, why=why, cure=cure)
