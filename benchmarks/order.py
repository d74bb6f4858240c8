"""The cost of `indices(step)`, with and without phases of the order.

A dataset of a million records gets ten extensions of 1 % each: all in one epoch, or
one in each of ten epochs. Another is doubled, tripled and so on, ten times in one
epoch. From a third a thousand records are removed, alone or while 1 % is appended. For
each it takes steps of an epoch that was extended, and of a later one.

    python -m benchmarks.order
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.shuffle import (
    BlockShuffle,
    GlobalShuffle,
    NoShuffle,
    Shuffle,
)
from gristmill.loader.order.step_records import Schedule

RECORDS = 1_000_000
EXTENSIONS = 10
REMOVED = 1_000
ROUNDS = 9


def cases(
    plain: Schedule, *, removed_records: int = REMOVED
) -> Iterator[tuple[str, Schedule, Sequence[int]]]:
    """Yields a name, a schedule, and steps of it."""
    whole = plain.orders[0].num_records
    epoch = whole // plain.batch_size
    yield "no phases", plain, range(epoch)

    def extended(share: float, steps: Sequence[int]) -> Schedule:
        schedule = plain
        for number, step in enumerate(steps, 1):
            records = whole + int(number * share * whole)
            schedule = schedule.extended(records, step=step)
        return schedule

    early = [epoch * number // 30 for number in range(1, EXTENSIONS + 1)]
    small = extended(0.01, early)
    yield "ten of 1 %, the epoch extended ten times", small, range(epoch // 2, epoch)
    yield "ten of 1 %, a later epoch", small, range(4 * epoch, 5 * epoch)
    spread = extended(0.01, [epoch // 2 + epoch * n for n in range(EXTENSIONS)])
    yield "ten of 1 %, each in an epoch of its own", spread, range(3 * epoch, 4 * epoch)
    large = extended(1, early)
    yield "ten of 100 %, the epoch extended ten times", large, range(epoch // 2, epoch)
    removed = np.random.default_rng(0).choice(whole, removed_records, replace=False)
    half = range(epoch // 2, epoch * 9 // 10)
    for name, records in (("removed", 0), ("removed, 1 % added", whole // 100)):
        left = whole - removed_records + records
        fewer = plain.extended(left, step=epoch // 3, removed=removed)
        name = f"{removed_records:,} {name}"
        yield name, fewer, half
        yield f"{name}, a later epoch", fewer, range(4 * epoch, 5 * epoch)


def milliseconds(schedule: Schedule, steps: Iterator[int]) -> float:
    """Returns how long a step takes, the best of some."""
    times = []
    for step in itertools.islice(steps, 300):
        started = time.perf_counter()
        schedule.indices(step)
        times.append(time.perf_counter() - started)
    return 1000 * min(times)


def main() -> None:
    """Prints a table: rounds alternate between all cases, and medians are shown."""
    print("| shuffle | rows | phases | ms | of no phases |")
    print("| --- | --- | --- | --- | --- |")
    shuffles: list[Shuffle] = [NoShuffle(), GlobalShuffle(), BlockShuffle()]
    for shuffle, rows in itertools.product(shuffles, (1024, 8192)):
        order = DatasetOrder(num_records=RECORDS, seed=1, shuffle=shuffle)
        found = list(cases(Schedule(orders=(order,), batch_size=rows)))
        endless = [itertools.cycle(steps) for _, _, steps in found]
        rounds = [
            [
                milliseconds(schedule, steps)
                for (_, schedule, _), steps in zip(found, endless, strict=True)
            ]
            for _ in range(ROUNDS)
        ]
        medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
        for (name, _, _), median in zip(found, medians, strict=True):
            ratio = median / medians[0]
            print(
                f"| {shuffle.kind} | {rows:,} | {name} | {median:.3f} | {ratio:.2f} |"
            )


if __name__ == "__main__":
    main()
