"""The rows of a batch that each host takes."""

from __future__ import annotations

import math

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import checked_count


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
