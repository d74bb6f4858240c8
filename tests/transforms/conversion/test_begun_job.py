"""A rerun looks into no object again, unless one is another or more is asked."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.conversion.begin_job import begin_job
from gristmill.transforms.conversion.job_inputs import (
    known_looks,
    list_inputs,
    match_job,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.input_formats import look_at
from tests.support.gcs_server import GcsServer
from tests.support.records import frames_of, text_records

IN = "gs://bucket/in"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("bucket", "in/a", frames_of(text_records(9)))
        packed = gzip.compress(frames_of(text_records(5)))
        server.objects.put("bucket", "in/b", packed)
        yield server


def job(**options) -> ConversionJob:
    defaults = {"inputs": (f"{IN}/*",), "output": "gs://bucket/out", "name": "data"}
    return ConversionJob(**defaults | options)


def test_a_rerun_reads_nothing_of_the_same_objects(server: GcsServer) -> None:
    begun = begin_job(job()).prepared
    looked = []
    files = list_inputs(job(), look=lambda files: looked.append(files) or [])
    assert not looked
    assert files.digest == begun.files.digest
    assert list(files.compressions) == list(begun.files.compressions)
    assert files.spec == begun.files.spec
    assert begin_job(job()).prepared.fingerprint == begun.fingerprint


def test_when_files_are_looked_into_again(server: GcsServer) -> None:
    """Each of these is another listing, or asks for more."""
    found = match_job(job())
    assert found is not None
    assert known_looks(job(), found) is None  # Nothing was begun.
    begin_job(job())
    assert len(known_looks(job(), found) or ()) == len(look_at(found)) == 2
    for other in (
        job(on_corrupt="skip"),
        job(records=RecordOptions(input_format="tfrecord")),
        job(split="test"),
    ):
        assert known_looks(other, found) is None
    assert known_looks(job(), found[:1]) is None
    looked = []

    def look(files):
        looked.append(len(files))
        return look_at(files)

    list_inputs(job(), look=look, anew=True)
    # The same bytes are another generation.
    server.objects.put("bucket", "in/a", frames_of(text_records(9)))
    list_inputs(job(), look=look)
    assert looked == [2, 2]
    server.objects.put("bucket", "in/a", b"PAR1 and no more")
    with pytest.raises(InputError, match="Parquet"):
        list_inputs(job())
