"""The positions of each step, with batch sizes that change at steps.

Positions continue where the batch size changes: from step s on, step s + k begins at
position `s * old + k * new`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import NamedTuple

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import POSITION_LIMIT, checked_count


class Resize(NamedTuple):
    """A batch size that holds from a step on.

    Attributes:
        step: The first step with this size.
        batch_size: Rows of the global batch, over all hosts.
    """

    step: int
    batch_size: int


class BatchSizes:
    """The size and the first position of every step.

    Args:
        batch_size: Rows of the global batch at step 0.
        resizes: Other sizes, at ascending steps from 1 on.
    """

    def __init__(self, batch_size: int, resizes: Iterable[Resize] = ()):
        self._sizes, self._steps, self._starts = [batch_size], [0], [0]
        for step, size in resizes:
            start = self.start(step)
            if step <= self._steps[-1] or start >= POSITION_LIMIT:
                raise InputError(
                    "batch sizes do not follow one another",
                    expected="rising steps from 1, of positions below 2^63",
                    got=f"batch_size {size} from step {step}, after that from step "
                    f"{self._steps[-1]}",
                    cure="resize at a later step than before, and at a smaller one "
                    "than that of 2^63 rows",
                )
            self._sizes.append(size)
            self._steps.append(step)
            self._starts.append(start)

    def size(self, step: int) -> int:
        """Returns the rows of a step's batch, if it is full."""
        return self._sizes[bisect.bisect_right(self._steps, step) - 1]

    def start(self, step: int) -> int:
        """Returns the first position of a step."""
        if len(self._steps) == 1:
            return step * self._sizes[0]
        number = bisect.bisect_right(self._steps, step) - 1
        return self._starts[number] + (step - self._steps[number]) * self._sizes[number]

    def find(self, position: int) -> tuple[int, int]:
        """Returns the step that has a position, and its row there."""
        number = bisect.bisect_right(self._starts, position) - 1
        steps, row = divmod(position - self._starts[number], self._sizes[number])
        return self._steps[number] + steps, row

    def from_step(self, step: int) -> list[int]:
        """Returns the sizes that hold at a step or later."""
        return self._sizes[bisect.bisect_right(self._steps, step) - 1 :]


def host_rows(batch_size: int, *, process_index: int, process_count: int) -> slice:
    """Returns the rows that one host takes of a batch.

    Raises:
        InputError: The batch does not divide among the hosts, or there is no such
            host.
    """
    process_count = checked_count(process_count, what="process_count")
    process_index = checked_count(
        process_index, what="process_index", least=0, most=process_count - 1
    )
    rows, left = divmod(batch_size, process_count)
    if left:
        sizes = [n * process_count for n in (rows, rows + 1) if n]
        counts = nearest_divisors(batch_size, process_count)
        hosts = "1 host" if counts == [1] else f"{_either(counts)} hosts"
        raise InputError(
            "the global batch does not divide among the hosts",
            expected=f"a multiple of {process_count:,} rows",
            got=f"{batch_size:,} rows for {process_count:,} hosts",
            cure=f"choose batch_size {_either(sizes)}, or run {hosts}",
        )
    return slice(process_index * rows, (process_index + 1) * rows)


def nearest_divisors(number: int, near: int) -> list[int]:
    """Returns the divisors of a number nearest to one that does not divide it.

    >>> nearest_divisors(1024, 48)
    [32, 64]
    """
    below = next(n for n in range(min(near - 1, number), 0, -1) if number % n == 0)
    above = [number]
    # From the smallest on, or from that with the largest cofactor: sqrt(number) each.
    root = math.isqrt(number)
    above += (n for n in range(near + 1, root + 1) if number % n == 0)
    most = min(number // (near + 1), root)
    above += (number // n for n in range(most, 0, -1) if number % n == 0)
    larger = [n for n in above if n > near]
    return [below, min(larger)] if larger else [below]


def _either(numbers: list[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)
