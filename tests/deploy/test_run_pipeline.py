"""What a runner hands back: the result of the last step, or our own error."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
import random

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import CorruptInputError, JobError
from gristmill.dataset.base.system import usable_cores
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.beam.run_pipeline import run_pipeline
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.job_options import IndexOptions
from tests.support.conversion import contents, job_of
from tests.support.pipelines import (
    BUNDLE_BASED,
    BUNDLES_TWICE,
    IN_MEMORY,
    WORKER_PROCESSES,
)
from tests.support.records import frames_of, text_records, write_array_records
from tests.support.started import started


def runners(processes: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Returns the runners as a parameter, that of worker processes with a mark."""
    return pytest.mark.parametrize(
        "runner",
        [
            *(IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED),
            pytest.param(WORKER_PROCESSES, marks=processes),
        ],
        ids=["in memory", "bundles twice", "bundle based", "processes"],
    )


RUNNERS = runners(pytest.mark.slow)


@pytest.mark.slow
@RUNNERS
def test_a_conversion_returns_what_its_commit_returned(runner, tmp_path):
    records = [random.Random(n).randbytes(1000) for n in range(100)]
    (tmp_path / "in").write_bytes(frames_of(records))
    job = job_of(tmp_path / "in", tmp_path / "here", plan=("num_shards", 20))
    here = convert([job])
    job = dataclasses.replace(job, output=str(tmp_path / "there"))
    there = convert([job], beam_options=runner)
    assert here.manifest == there.manifest
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


# In worker processes each of its three pipelines takes seconds: that their results come
# back is tested by a conversion, and that these steps pickle by the templates.
@pytest.mark.slow
@runners(pytest.mark.soak)
def test_indexing_and_verifying_return_what_they_found(runner, tmp_path):
    for folder in ("here", "there"):
        (tmp_path / folder / "old").mkdir(parents=True)
        write_array_records(tmp_path / folder / "old" / "x", text_records(40))
    here, _ = index(IndexOptions(files=(f"{tmp_path}/here/old/x",)))
    there, place = index(
        IndexOptions(files=(f"{tmp_path}/there/old/x",)), beam_options=runner
    )
    assert here.splits["train"].records == there.splits["train"].records == 40
    # The id of a write holds where its files are.
    ours, theirs = (
        {name.replace(one.splits["train"].write, "ID") for name in contents(folder)}
        for one, folder in ((here, tmp_path / "here"), (there, tmp_path / "there"))
    )
    assert ours == theirs
    for quick in (False, True):
        found = verify(place, quick=quick, beam_options=runner)
        expected = verify(place, quick=quick, workers=1)
        assert dataclasses.replace(found, seconds=expected.seconds) == expected
        assert found.shards == 1


@dataclasses.dataclass
class One(beam.PTransform):
    """Gives one element, or raises."""

    error: Exception | None = None

    def expand(self, begin):
        return begin | beam.Create([1]) | beam.Map(self._step)

    def _step(self, element):
        if self.error is not None:
            raise self.error
        return element


ERROR = CorruptInputError(
    "not a frame", where="file 1", expected="a length", got=7, cure="look at it"
)


THREE = ("num_shards", 3)


@pytest.fixture
def three_files(tmp_path) -> str:
    (tmp_path / "in").mkdir()
    for number in range(3):
        records = frames_of(text_records(5, seed=number))
        (tmp_path / "in" / f"{number}.tfrecord").write_bytes(records)
    return f"{tmp_path}/in/*"


def test_little_work_starts_no_processes(three_files, tmp_path, monkeypatch):
    with started() as own:
        convert([job_of(three_files, tmp_path / "out", plan=THREE)], workers=None)
        for number in range(3):
            (tmp_path / "old").mkdir(exist_ok=True)
            write_array_records(tmp_path / "old" / f"x{number}", text_records(5))
        index(IndexOptions(files=(f"{tmp_path}/old/x*",)))
        assert not verify(str(tmp_path / "out")).findings
        assert not own.processes
        # Those that are asked for start at once.
        assert not verify(str(tmp_path / "out"), workers=2).findings
        assert own.processes


@pytest.mark.slow
def test_a_function_of_the_user_s_is_called_in_processes(
    three_files, tmp_path, monkeypatch
):
    source = "import os\n\ndef tell(record):\n    return str(os.getpid()).encode()\n"
    (tmp_path / "tell_process.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    if usable_cores() < 2:
        pytest.skip("one process does all on one core")
    job = job_of(three_files, tmp_path / "out", plan=THREE, map="tell_process:tell")
    convert([job], workers=None)
    called = {*loader.open(tmp_path / "out").read(range(15))}
    assert str(os.getpid()).encode() not in called


@RUNNERS
def test_an_error_keeps_its_fields(runner, tmp_path):
    with pytest.raises(CorruptInputError) as caught:
        run_pipeline(One(ERROR), runner, result_path=f"{tmp_path}/result")
    assert caught.value.facts() == ERROR.facts()
    assert str(caught.value) == str(ERROR)
    assert not list(tmp_path.iterdir())


def test_other_errors_stay_as_they_are(tmp_path):
    with pytest.raises(RuntimeError, match="KeyError: 1"):
        run_pipeline(One(KeyError(1)), IN_MEMORY, result_path=f"{tmp_path}/result")


@pytest.mark.slow
def test_a_runner_that_fails_itself(tmp_path):
    runner = ["--runner=PortableRunner"]
    with pytest.raises(JobError, match="the Beam runner has failed") as caught:
        run_pipeline(One(), runner, result_path=f"{tmp_path}/result")
    assert caught.value.where == "--runner=PortableRunner"
    assert "You must specify a --job_endpoint" in str(caught.value.got)


class NoElement(beam.PTransform):
    def expand(self, begin):
        return begin | beam.Create([])


def test_a_result_that_does_not_arrive_is_an_error(tmp_path):
    """As where workers write to a disk of their own."""
    with pytest.raises(JobError, match="its result did not arrive") as caught:
        run_pipeline(NoElement(), IN_MEMORY, result_path=f"{tmp_path}/result")
    assert "gs:// paths" in str(caught.value)


class Bomb:
    """What runs code when it is read."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self.path),)


def _put_another(element: object, path: str, bomb: str) -> object:
    pathlib.Path(path).write_bytes(bytes(32) + pickle.dumps(Bomb(bomb)))
    return element


class ReplacedResult(beam.PTransform):
    """As where somebody else may write to the bucket of the result."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def expand(self, begin):
        made = begin | beam.Create([1])
        return made | beam.Map(_put_another, f"{self.path}/result", f"{self.path}/bomb")


def test_a_result_of_somebody_else_is_not_read(tmp_path):
    with pytest.raises(JobError, match="is not from this run") as caught:
        run_pipeline(
            ReplacedResult(str(tmp_path)), IN_MEMORY, result_path=f"{tmp_path}/result"
        )
    assert "run the same command again" in caught.value.cure
    assert not list(tmp_path.iterdir())
