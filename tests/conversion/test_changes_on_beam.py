"""Columns and removals on Beam: the files are those of local processes."""

import shutil

import pytest

from gristmill import loader
from gristmill.pipelines.columns.attach import attach_computed
from gristmill.pipelines.removal import remove
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.columns.attach_job import ComputeJob
from gristmill.transforms.removal.removal_job import RemovalJob
from tests.commands import conftest as commands
from tests.support.columns import examples
from tests.support.conversion import contents
from tests.support.pipelines import counters, ended, run

FUNCTION = "tests.conversion.test_changes_on_beam:facts"


def facts(record):
    return {"size": len(record), "words": record.hex(" ", 4), "pair": [0.5, 1.0]}


@pytest.fixture
def places(tmp_path):
    here = examples(tmp_path, [5, 0, 6])
    shutil.copytree(here, tmp_path / "beam")
    return here, str(tmp_path / "beam")


def test_columns(places):
    here, there = places
    attach_computed(here, FUNCTION, workers=1)
    line = f"attach {there} --map {FUNCTION} --runner FnApiRunner"
    said = "size (int64), words (text), pair (float64 [2]) attached to 11"
    assert said in commands.run(line).output
    assert contents(here) == contents(there)
    opened = loader.open(there)
    assert opened.column("size")[:].tolist() == [*map(len, opened)]
    assert "attached before" in commands.run(line).output
    run(RunJob(ComputeJob(there, FUNCTION, None, True)))
    assert contents(here) == contents(there)


@pytest.mark.slow
@pytest.mark.parametrize("erase", [False, True])
def test_removals(places, erase):
    here, there = places
    left = list(loader.open(here))
    asked = {"records": [0, 6, 10], "split": None, "edition": None}
    job = RemovalJob(there, {**asked, "erase": erase})
    counted = counters(ended(RunJob(job)))
    assert (counted["planned-shards"], counted["made-shards"]) == (2, 2)
    remove(here, asked, erase=erase, workers=1)
    assert contents(there) == contents(here)
    assert list(loader.open(there)) == left[1:6] + left[7:10]
    (again,) = run(RunJob(job))
    assert (again.records, again.editions) == (0, ())
    asked["records"], options = [1], ["--runner=FnApiRunner"]
    remove(here, asked, erase=erase, workers=1)
    found = remove(there, asked, erase=erase, beam_options=options)
    assert found.records == 1
    assert contents(there) == contents(here)
