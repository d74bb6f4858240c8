"""What jobs on Beam count: an index and a verification.

`test_convert_tfrecords` and `test_write_arrayrecords` have the others.
"""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import Lineage

from gristmill.transforms import (
    ConversionJob,
    ConvertFiles,
    IndexArrayRecords,
    ReadAllRecords,
    ReadTFRecords,
    VerifyDataset,
    WriteArrayRecords,
)
from tests.support.pipelines import counters, distributions, ended
from tests.support.records import text_records, write_array_records, write_tfrecords


@pytest.mark.slow
def test_an_index_and_a_verification(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gristmill")
    for name in ("x", "y"):
        write_array_records(tmp_path / name, text_records(5))
    result = ended(IndexArrayRecords(files=tmp_path / "*"))
    assert counters(result) == {
        **{"planned-shards": 2, "made-shards": 2, "records": 10},
        "raw-bytes": 2 * sum(map(len, text_records(5))),
    }
    stored_bytes = sum((tmp_path / name).stat().st_size for name in ("x", "y"))
    assert distributions(result)["shard-bytes"].sum == stored_bytes

    (tmp_path / "y").write_bytes(b"damaged")
    result = ended(VerifyDataset(tmp_path))
    counted = counters(result)
    assert counted["planned-shards"] == counted["verified-shards"] == 2
    assert counted["findings"] == 1
    assert distributions(result)["shard-milliseconds"].count == 2
    *said, last = caplog.records
    assert (last.levelname, {each.levelname for each in said}) == ("WARNING", {"INFO"})
    assert "verified 2 shards, 5 records, 1 finding" in last.getMessage()


def lineage_of(*transforms: Any) -> tuple[set[str], set[str]]:
    """Returns sources and sinks that a pipeline reports."""
    metrics = ended(*transforms).metrics()
    return (
        Lineage.query(metrics, Lineage.SOURCE),
        Lineage.query(metrics, Lineage.SINK),
    )


def local(*paths: pathlib.Path) -> set[str]:
    return {f"filesystem:localhost.{path}" for path in paths}


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "in").mkdir()
    write_tfrecords(tmp_path / "in" / "a", text_records(5))
    (tmp_path / "old").mkdir()
    write_array_records(tmp_path / "old" / "x", text_records(5))
    return tmp_path


@pytest.mark.slow
def test_of_a_read_and_a_write(place: pathlib.Path) -> None:
    """The written dataset is read in the same job: the names are the same."""
    sources, sinks = lineage_of(
        ReadTFRecords(place / "in" / "*"),
        WriteArrayRecords(place / "out", num_shards=1),
        beam.Map(lambda result: result.output),
        ReadAllRecords(),
    )
    assert sources == local(place / "in", place / "out")
    assert sinks == local(place / "out")


def test_of_a_conversion(place: pathlib.Path) -> None:
    job = ConversionJob(inputs=place / "in" / "a", output=place / "out", name="c4")
    sources, sinks = lineage_of(ConvertFiles(jobs=(job,)))
    assert (sources, sinks) == (local(place / "in" / "a"), local(place / "out"))


@pytest.mark.slow
def test_of_an_index_and_a_verification(place: pathlib.Path) -> None:
    sources, sinks = lineage_of(IndexArrayRecords(files=place / "old" / "x"))
    assert (sources, sinks) == (local(place / "old" / "x"), local(place / "old"))
    assert lineage_of(VerifyDataset(place / "old")) == (local(place / "old"), set())
