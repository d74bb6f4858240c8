"""The header `Retry-After` of an answer, in seconds."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping


def retry_after_seconds(headers: Mapping[str, str]) -> float:
    """Returns the seconds that an answer asks to wait, 0 by default.

    Args:
        headers: Headers of the answer, in any case if the mapping ignores case, else in
            HTTP's usual one. `Retry-After` is a number of seconds, or a date, which is
            compared with the server's own `Date`, as clocks may differ.
    """
    text = _header(headers, "Retry-After").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    due = _unix_seconds(text)
    if due is None:
        return 0.0
    now = _unix_seconds(_header(headers, "Date"))
    return max(due - (time.time() if now is None else now), 0.0)


def _header(headers: Mapping[str, str], name: str) -> str:
    return headers.get(name) or headers.get(name.lower()) or ""


def _unix_seconds(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
