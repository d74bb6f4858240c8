"""Counts and sizes in messages."""

from __future__ import annotations


def size_text(size_bytes: float) -> str:
    """Returns a size with a unit.

    >>> size_text(2_621_440)
    '2.5 MiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size_bytes) < 1024 or unit == "PiB":
            break
        size_bytes /= 1024
    return (
        f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
    )


def plural(count: int, thing: str) -> str:
    """Returns a count with its noun.

    >>> plural(1, "shard"), plural(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
