"""One job on both runners: the same result, however it is done."""

from __future__ import annotations

import pytest

from gristmill.pipelines.local.pool import run_job
from gristmill.transforms.beam.run_job import RunJob
from tests.support.pipelines import counters, ended, run
from tests.support.squares import SquareJob


@pytest.mark.parametrize("yields", [False, True])
def test_both_runners_give_the_same(yields: bool) -> None:
    job = SquareJob(5, yields)
    numbers = [*range(-5, 6)] if yields else [*range(6)]
    expected = [(number, number**2) for number in numbers]
    assert run_job(job) == expected
    assert run_job(job, workers=2) == expected
    assert run(RunJob(job)) == [expected]


def test_without_a_task_what_is_known_is_committed() -> None:
    job = SquareJob(0)
    assert run_job(job) == [(0, 0)]
    assert run(RunJob(job)) == [[(0, 0)]]


def test_tasks_and_results_are_counted() -> None:
    counted = counters(ended(RunJob(SquareJob(5, yields=True))))
    assert counted == {"planned-shards": 5, "records": 10}
