"""Runs, partitions and removals as arrays, compared with a dict."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gristmill.transforms.duplicates.runs import (
    Run,
    removals_of,
    resolve,
)

Place = tuple[int, int]


def expected_of(records: list[tuple[Any, Place]]) -> list[tuple[int, int, int, int]]:
    """Returns the removals of records in order, by a dict."""
    first: dict[Any, Place] = {}
    found = []
    for key, (file, place) in records:
        if key in first:
            found.append((file, first[key][0], place, first[key][1]))
        first.setdefault(key, (file, place))
    return found


def found_in(
    records: list[tuple[Any, Place]], cuts: list[int], partitions: int
) -> list[tuple[int, int, int, int]]:
    """Returns the removals that the steps find, with runs cut so."""
    runs = []
    for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
        part = records[begin:end]
        digests = np.array([key for key, _ in part], np.uint64).reshape(-1, 2)
        files, places = np.array([p for _, p in part], np.int64).reshape(-1, 2).T
        runs.append(Run.of(digests, files, places))
    resolved: list[list[Any]] = [[] for _ in runs]
    ends = [run.fences(partitions) for run in runs]
    for part in range(partitions):
        blocks = [
            run.entries[fence[part] : fence[part + 1]]
            for run, fence in zip(runs, ends, strict=True)
        ]
        for own, rows in zip(resolved, resolve(blocks), strict=True):
            own.append(rows)
    return [
        row
        for run, own in zip(runs, resolved, strict=True)
        for row in removals_of(run.copies, own).tolist()
    ]


def check_random(seed: int) -> None:
    rng = random.Random(seed)
    halves = [rng.getrandbits(64) for _ in range(rng.randrange(1, 9))]
    halves += [0, (1 << 64) - 1]
    count = rng.choice([0, 1, 2, 50, 300])
    places = sorted(
        rng.sample([(f, p) for f in range(3) for p in range(200)], min(count, 600))
    )
    # Few halves, so that digests share one.
    records = [((rng.choice(halves), rng.choice(halves)), place) for place in places]
    cuts = sorted(rng.randrange(len(records) + 1) for _ in range(rng.randrange(5)))
    partitions = rng.choice([1, 2, 4, 8, 64])
    assert found_in(records, cuts, partitions) == expected_of(records)


@pytest.mark.parametrize("seed", range(50))
def test_removals_are_those_of_a_dict(seed: int) -> None:
    check_random(seed)


def test_one_digest_is_an_entry_a_run() -> None:
    records = [((5, 5), (0, place)) for place in range(1000)]
    digests = np.full((1000, 2), 5, np.uint64)
    run = Run.of(digests, np.zeros(1000), np.arange(1000))
    assert (len(run.entries), len(run.copies)) == (1, 999)
    assert found_in(records, [10, 500], 4) == expected_of(records)


def test_partitions_hold_the_upper_bits() -> None:
    high = np.arange(16, dtype=np.uint64) << np.uint64(60)
    digests = np.stack([high[::-1], high], axis=1)
    run = Run.of(digests, np.zeros(16), np.arange(16))
    assert run.fences(16).tolist() == [*range(17)]
    assert run.fences(4).tolist() == [0, 4, 8, 12, 16]
    assert run.fences(1).tolist() == [0, 16]
