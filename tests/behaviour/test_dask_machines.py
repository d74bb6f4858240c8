"""Several machines' worth of Dask workers, one of which is lost: every record once.

The workers are processes with directories of their own. What they share is what
machines would share: the scheduler, and a file system or a bucket.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.transforms import ReadAllTFRecords, WriteArrayRecords
from gristmill.transforms.beam.convert_files import ConvertFiles
from tests.support.conversion import contents, job_of, prepared_of
from tests.support.dask_machines import DaskMachines
from tests.support.gcs_process import GcsProcess
from tests.support.pipelines import run
from tests.support.records import text_records, write_tfrecords

FILES, PER_FILE = 6, 40


def records_of(number: int) -> list[bytes]:
    return [b"%d %s" % (number, record) for record in text_records(PER_FILE)]


@functools.cache
def all_records() -> list[bytes]:
    return [record for number in range(FILES) for record in records_of(number)]


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(FILES):
        write_tfrecords(folder / f"{number:02d}", records_of(number))
    return folder


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with GcsProcess("out") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield "gs://out"


def check(output: str) -> None:
    dataset = loader.open(output)
    assert sorted(dataset.read(range(len(dataset)))) == sorted(all_records())


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_write_and_a_conversion_that_each_lose_a_machine(inputs, tmp_path, bucket):
    """On four machines: one is lost in the write, another in the conversion.

    Then a write whose number of groups is a side input, which Dask passes otherwise.
    """
    write = functools.partial(WriteArrayRecords, name="data", num_shards=12)
    measured = functools.partial(WriteArrayRecords, name="data", shard_bytes=4000)
    run(beam.Create(all_records()), write(tmp_path / "here"))
    run(beam.Create(all_records()), measured(tmp_path / "measured-here"))
    paths = sorted(map(str, inputs.iterdir()))
    job = job_of(inputs, f"{bucket}/converted", plan=("num_shards", 12))
    prepared = prepared_of(job)
    with DaskMachines(tmp_path / "machines") as machines:
        machines.run(beam.Create(paths), ReadAllTFRecords(), write(tmp_path / "there"))
        machines.check_lost(1)
        machines.run(ConvertFiles(jobs=(job,), prepared=(prepared,)))
        machines.check_lost(2)
        place = tmp_path / "measured-there"
        machines.run(beam.Create(paths), ReadAllTFRecords(), measured(place))
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert contents(tmp_path / "measured-there") == contents(tmp_path / "measured-here")
    check(str(tmp_path / "there"))
    check(f"{bucket}/converted")


def test_the_records_are_all_different():
    """So that one that is lost, and another one twice, would be seen."""
    assert len(set(all_records())) == FILES * PER_FILE
