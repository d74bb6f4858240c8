"""Functions that cases give to `--map`."""

from typing import Any


def upper(record: bytes) -> bytes:
    """Changes a record."""
    return record.upper()


def thin(record: bytes) -> bytes | None:
    """Drops records of an odd number of bytes."""
    return None if len(record) % 2 else record


def words(record: bytes) -> list[bytes]:
    """Makes a record of each of the first three words."""
    return record.split()[:3]


def measures(record: bytes) -> dict[str, Any]:
    """Computes columns."""
    return {"size": len(record), "first": record[:1].decode("latin-1")}
