"""Answers of Cloud Storage: their ranges, messages and waits, for any client."""

from __future__ import annotations

import contextlib
import email.utils
import json
import re

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SHOWN_CHARS = 200


def content_range(text: str) -> tuple[int, int, int] | None:
    """Returns begin, end and total of a Content-Range, None if it has another form.

    >>> content_range("bytes 0-9/40")
    (0, 10, 40)
    """
    if (match := _RANGE.fullmatch(text)) is None:
        return None
    first, last, total = map(int, match.groups())
    return first, last + 1, total


def service_message(body: bytes) -> str:
    """Returns the message of an error of the service; "" for another body."""
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
        return str(json.loads(body)["error"]["message"])
    return ""


def message_of(body: bytes) -> str:
    """Returns the service's message in a body, otherwise the body as text; cut."""
    text = service_message(body) or body[:1000].decode("utf-8", "replace")
    text = " ".join(text.split())
    return f"{text[:_SHOWN_CHARS]}..." if len(text) > _SHOWN_CHARS else text


def strange(status: int, content_type: str | None, body: bytes) -> str:
    """Describes an answer that is not from Cloud Storage."""
    return (
        f"answer that is not from Cloud Storage: status {status}, "
        f"{content_type or 'no Content-Type'}, {message_of(body)!r}"
    )


def retry_after_seconds(retry_after: str | None, date: str | None) -> float:
    """Returns the seconds that an answer asks to wait, 0 by default.

    A date is compared with the server's own, as clocks may differ.
    """
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        due, now = (
            email.utils.parsedate_to_datetime(each).timestamp()
            for each in (text, date or email.utils.formatdate())
        )
    except (ValueError, OverflowError):
        return 0.0
    return max(due - now, 0.0)
