"""Removal on Beam: the same files as on this machine."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.removal import remove
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.removal.removal_job import RemovalJob, RemovalResult
from tests.support.conversion import contents, dataset_of
from tests.support.pipelines import counters, ended, run
from tests.support.records import text_records

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


def test_wrong_arguments_are_refused(dataset):
    with pytest.raises(InputError, match="no such record"):
        run(removal(dataset, [90]))
