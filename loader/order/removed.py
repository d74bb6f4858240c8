"""Numbers left out of a sequence, and the resulting numbers of the others."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import POSITION_LIMIT, IntArray, checked_indices


class Removed:
    """Some numbers of a sequence; without them the others close up.

    Equal if the numbers are. Not to be changed.

    Args:
        numbers: Integers [removed], each once, in any order.

    Attributes:
        numbers: int64 [removed], ascending.

    Raises:
        InputError: One occurs twice, or they are not integers below 2^63.
    """

    def __init__(self, numbers: npt.ArrayLike = ()):
        flat = checked_indices(numbers, stop=POSITION_LIMIT, what="removed record")
        if flat.ndim != 1:
            raise InputError(
                "removed records must be a list of numbers",
                expected="one dimension",
                got=f"shape {flat.shape}",
                cure="give the list of their numbers",
            )
        rises = flat[1:] > flat[:-1]
        if not rises.all():
            flat = np.sort(flat)
            rises = flat[1:] > flat[:-1]
        if not rises.all():
            raise InputError(
                "a record is removed twice",
                expected="each number once",
                got=f"{int(flat[1:][~rises][0]):,} twice",
                cure="give each number once",
            )
        self.numbers = flat

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"<{len(self):,} removed>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Removed):
            return NotImplemented
        return np.array_equal(self.numbers, other.numbers)

    def __reduce__(self) -> Any:
        return Removed, (self.numbers,) if len(self) else ()

    def __hash__(self) -> int:
        return hash(self.digest)

    @functools.cached_property
    def digest(self) -> str:
        """Half a SHA-256 over the numbers, which stands for them in a state."""
        return hashlib.sha256(self.numbers.astype("<u8").tobytes()).hexdigest()[:32]

    def has(self, numbers: IntArray) -> npt.NDArray[np.bool_]:
        """Returns whether each of some numbers is left out."""
        if not len(self):
            return np.zeros(numbers.shape, bool)
        nearest = np.searchsorted(self.numbers, numbers)
        found: npt.NDArray[np.bool_] = (
            self.numbers.take(nearest, mode="clip") == numbers
        )
        return found

    def closed(self, numbers: IntArray) -> IntArray:
        """Returns the numbers after these are closed up; these get that of the next."""
        return numbers - np.searchsorted(self.numbers, numbers)

    def opened(self, numbers: IntArray) -> IntArray:
        """Undoes `closed`."""
        if not len(self):
            return numbers
        return numbers + np.searchsorted(self._closed, numbers, side="right")

    def joined(self, others: IntArray) -> Removed:
        """Returns the union with other numbers."""
        return Removed(np.concatenate([self.numbers, others])) if len(others) else self

    @functools.cached_property
    def _closed(self) -> IntArray:
        return self.numbers - np.arange(len(self))


NOTHING = Removed()
