"""A job for tests of runners, in a module that workers import in no time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from gristmill.dataset.base.columns import Done, Gathered
from gristmill.transforms.jobs.job import Begun


class Square(NamedTuple):
    """The result of a step."""

    number: int
    square: int

    def gather(self, gathered: Gathered) -> None:
        """Notes the square."""
        gathered.notes["squares"][self.number] = self.square

    @property
    def done(self) -> Done:
        """Counts a record."""
        return Done(str(self.number), "squared", 1, 1, 1, {"records": 1})


def square(number: int) -> Square:
    """Squares a number."""
    return Square(number, number**2)


def squares(number: int) -> Iterator[Square]:
    """Squares a number and its negative."""
    yield square(number)
    yield square(-number)


@dataclasses.dataclass(frozen=True)
class SquareJob:
    """Squares of some numbers, and one that is known."""

    numbers: int
    yields: bool = False

    def begin(self) -> Begun[int]:
        """Lists the numbers."""
        return Begun(
            label="squaring",
            tasks=range(1, self.numbers + 1),
            parts=self.numbers,
            known=(Square(0, 0),),
        )

    @property
    def step(self):
        """Squares a number."""
        return squares if self.yields else square

    def commit(self, gathered: Gathered) -> list[tuple[int, int]]:
        """Sorts the squares."""
        return sorted(gathered.notes["squares"].items())
