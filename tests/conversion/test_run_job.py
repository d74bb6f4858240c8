"""One job on both runners: the same result, however it is done."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest

from gristmill import loader
from gristmill.pipelines.local.pool import run_job
from gristmill.pipelines.removal import remove
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.removal.removal_job import RemovalJob, RemovalResult
from tests.conversion.squares import SquareJob
from tests.support.conversion import contents, dataset_of
from tests.support.pipelines import counters, ended, run
from tests.support.records import text_records


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


RECORDS = text_records(90)
GONE = [0, 31, 32, 89]


def removal(
    dataset: pathlib.Path, records: list[int], *, erase: bool = False
) -> RunJob[RemovalResult]:
    asked = {"records": np.asarray(records), "split": None, "edition": None}
    return RunJob(RemovalJob(str(dataset), {**asked, "erase": erase}))


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> pathlib.Path:
    return dataset_of(tmp_path, RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("erase", [False, True])
def test_files_are_those_of_a_local_run(dataset, tmp_path, erase):
    shutil.copytree(dataset, tmp_path / "beam")
    beam = tmp_path / "beam"
    (result,) = run(removal(beam, GONE, erase=erase))
    expected = remove(str(dataset), {"records": GONE}, erase=erase, workers=1)
    assert result == expected
    assert contents(beam) == contents(dataset)
    left = [record for n, record in enumerate(RECORDS) if n not in GONE]
    assert list(loader.open(beam)) == left
    (again,) = run(removal(beam, GONE, erase=erase))
    assert (again.records, again.editions) == (0, ())
    assert contents(beam) == contents(dataset)


def test_shards_are_counted(dataset):
    found = counters(ended(removal(dataset, GONE)))
    assert (found["planned-shards"], found["made-shards"]) == (3, 3)


def test_the_command_hands_its_result_over(dataset):
    asked = {"records": [5], "split": "train"}
    options = ["--runner=FnApiRunner"]
    result = remove(str(dataset), asked, beam_options=options)
    assert (result.records, result.cut_shards) == (1, 1)
    assert list(loader.open(dataset)) == RECORDS[:5] + RECORDS[6:]
