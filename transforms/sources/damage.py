"""Damaged regions of inputs: what takes them while a range is read."""

from __future__ import annotations

from typing import Protocol

from gristmill.dataset.errors import CorruptFrameError, CorruptInputError


class DamageHandler(Protocol):
    """Takes damaged regions of inputs, one after the other."""

    def begin(
        self,
        error: CorruptFrameError,
        path: str,
        *,
        compressed_begin_bytes: int | None = None,
    ) -> None:
        """Called when a region begins. May raise: then reading ends with it.

        Args:
            error: What is wrong, and where.
            path: The file.
            compressed_begin_bytes: Where the rest of a compressed file begins that
                cannot be decompressed. The region is that rest, as it is stored.
        """

    def add(self, data: bytes) -> None:
        """Called with the bytes of the region, in order."""

    def end(self, offset: int) -> None:
        """Called with the offset after the region."""


class SkipDamage:
    """Skips damaged regions, which are set aside elsewhere or only counted.

    Args:
        max_regions: Most regions to accept; None for any number.
    """

    def __init__(self, *, max_regions: int | None = None):
        self._max_regions = max_regions
        self.regions = 0

    def begin(
        self,
        error: CorruptFrameError,
        path: str,
        *,
        compressed_begin_bytes: int | None = None,
    ) -> None:
        """Counts a region; see `DamageHandler`.

        Raises:
            CorruptInputError: There are more regions than allowed.
        """
        self.regions += 1
        if self._max_regions is not None and self.regions > self._max_regions:
            raise too_much_damage(
                self.regions, self._max_regions, where=str(error)
            ) from error

    def add(self, data: bytes) -> None:
        """Drops bytes; see `DamageHandler`."""

    def end(self, offset: int) -> None:
        """See `DamageHandler`."""


def too_much_damage(found: int, limit: int, *, where: str) -> CorruptInputError:
    """Returns the error for more damage than is allowed."""
    return CorruptInputError(
        "more damage in the inputs than --max-corrupt allows",
        where=where,
        expected=f"at most {limit:,} damaged regions",
        got=f"{found:,} or more",
        cure="check the regions listed in quarantine/, repair the inputs, or raise "
        "--max-corrupt; finished shards are kept",
    )
