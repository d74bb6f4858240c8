"""What a runner hands back: the result of the last step, or our own error."""

import dataclasses
import os
import pathlib
import pickle

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset import CorruptInputError, JobError
from gristmill.dataset.base.system import usable_cores
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.beam.run_pipeline import run_pipeline
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.job_options import IndexOptions
from tests.support.conversion import job_of
from tests.support.pipelines import (
    BUNDLE_BASED,
    BUNDLES_TWICE,
    IN_MEMORY,
    WORKER_PROCESSES,
)
from tests.support.records import frames_of, text_records, write_array_records
from tests.support.started import started
from tests.support.told import told

RUNNERS = pytest.mark.parametrize(
    "runner",
    [
        *(IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED),
        pytest.param(WORKER_PROCESSES, marks=pytest.mark.slow),
    ],
    ids=["in memory", "bundles twice", "bundle based", "processes"],
)


@pytest.mark.slow
def test_a_job_returns_what_it_returns_here(tmp_path):
    write_array_records(tmp_path / "x", text_records(40))
    files = IndexOptions(files=(f"{tmp_path}/x",))
    made, place = index(files, beam_options=IN_MEMORY)
    assert made.splits["train"].records == 40
    for quick in (False, True):
        found = verify(place, quick=quick, beam_options=IN_MEMORY)
        expected = verify(place, quick=quick, workers=1)
        assert dataclasses.replace(found, seconds=expected.seconds) == expected
        assert found.shards == 1


@dataclasses.dataclass
class Elements(beam.PTransform):
    """Gives elements, or raises."""

    elements: tuple[int, ...] = (1,)
    error: Exception | None = None

    def expand(self, begin):
        return begin | beam.Create(self.elements) | beam.Map(self._step)

    def _step(self, element):
        if self.error is not None:
            raise self.error
        return element


ERROR = CorruptInputError(
    "not a frame", where="file 1", expected="a length", got=7, cure="look at it"
)


@RUNNERS
def test_a_result_comes_back(runner, tmp_path):
    found = run_pipeline(Elements((7,)), runner, result_path=f"{tmp_path}/result")
    assert found == 7
    assert not list(tmp_path.iterdir())


@RUNNERS
def test_an_error_keeps_its_fields(runner, tmp_path):
    with pytest.raises(CorruptInputError) as caught:
        run_pipeline(Elements(error=ERROR), runner, result_path=f"{tmp_path}/result")
    assert caught.value.facts() == ERROR.facts()
    assert str(caught.value) == str(ERROR)
    assert not list(tmp_path.iterdir())


def test_other_errors_stay_as_they_are(tmp_path):
    step = Elements(error=KeyError(1))
    with told(RuntimeError, "KeyError: 1"):
        run_pipeline(step, IN_MEMORY, result_path=f"{tmp_path}/result")


@pytest.mark.slow
def test_a_runner_that_fails_itself(tmp_path):
    runner = ["--runner=PortableRunner"]
    with told(
        JobError,
        "the Beam runner has failed",
        "You must specify a --job_endpoint",
        where="--runner=PortableRunner",
    ):
        run_pipeline(Elements(), runner, result_path=f"{tmp_path}/result")


def test_a_result_that_does_not_arrive_is_an_error(tmp_path):
    """As where workers write to a disk of their own."""
    with told(JobError, "its result did not arrive", "gs:// paths"):
        run_pipeline(Elements(()), IN_MEMORY, result_path=f"{tmp_path}/result")


class Bomb:
    """What runs code when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self.path),)


@dataclasses.dataclass
class ReplacedResult(Elements):
    """As where somebody else may write to the bucket of the result."""

    path: str = ""

    def _step(self, element):
        bomb = bytes(32) + pickle.dumps(Bomb(f"{self.path}/bomb"))
        pathlib.Path(self.path, "result").write_bytes(bomb)
        return element


def test_a_result_of_somebody_else_is_not_read(tmp_path):
    step = ReplacedResult(path=str(tmp_path))
    with told(JobError, "is not from this run", "run the same command again"):
        run_pipeline(step, IN_MEMORY, result_path=f"{tmp_path}/result")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def three_files(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        records = frames_of(text_records(5, seed=number))
        (tmp_path / "in" / f"{number}.tfrecord").write_bytes(records)
    return f"{tmp_path}/in/*"


def test_little_work_starts_no_processes(three_files, tmp_path):
    job = job_of(three_files, tmp_path / "out", plan=("num_shards", 3))
    (tmp_path / "old").mkdir()
    for number in range(3):
        write_array_records(tmp_path / "old" / f"x{number}", text_records(5))
    with started() as own:
        convert([job], workers=None)
        index(IndexOptions(files=(f"{tmp_path}/old/x*",)))
        assert not verify(str(tmp_path / "out")).findings
        assert not own.processes
        # Those that are asked for start at once.
        assert not verify(str(tmp_path / "out"), workers=2).findings
        assert own.processes


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() < 2, reason="one process does all on one core")
def test_a_function_of_the_user_s_is_called_in_processes(
    three_files, tmp_path, monkeypatch
):
    source = "import os\n\ndef tell(record):\n    return str(os.getpid()).encode()\n"
    (tmp_path / "tell_process.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    plan = {"plan": ("num_shards", 3), "map": "tell_process:tell"}
    convert([job_of(three_files, tmp_path / "out", **plan)], workers=None)
    called = {*loader.open(tmp_path / "out").read(range(15))}
    assert str(os.getpid()).encode() not in called
