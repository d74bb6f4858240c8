"""Counts and sizes in messages."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.dataset.metadata.splits import Split


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


def map_name(split: Split) -> str | None:
    """Returns the user's function that made all records of a split, None if none."""
    found = set()
    for part in split.parts:
        options = part.source.get("options")
        found.add(options.get("map") if isinstance(options, Mapping) else None)
    name = found.pop()
    return None if name is None or found else str(name)


def map_text(split: Split) -> str | None:
    """Returns what a user's function did to the records of a split.

    None if there was no function.
    """
    changed = split.source.get("changed_records")
    counted = isinstance(changed, int)
    if not (counted or split.dropped_records or split.added_records):
        return None
    name = map_name(split)
    text = (f"{name}: " if name else "") + (
        f"{plural(split.dropped_records, 'record')} dropped, "
        f"{split.added_records:,} added"
    )
    return f"{text}, {changed:,} changed" if counted else text
