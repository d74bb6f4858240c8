"""The coder of records with sources: the same elements, in fewer bytes than pickle."""

from __future__ import annotations

import pathlib
import pickle

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from hypothesis import given
from hypothesis import strategies as st

from gristmill.transforms import ReadTFRecords, SourceRecord
from gristmill.transforms.beam.read_ranges import RecordCoder
from tests.support.pipelines import WORKER_PROCESSES, run
from tests.support.records import text_records, write_tfrecords


@given(
    file=st.binary().map(lambda name: name.decode("utf-8", "surrogateescape")),
    number=st.integers(0, (1 << 63) - 1),
    record=st.binary(),
)
def test_elements_come_back(file: str, number: int, record: bytes) -> None:
    coder = registry.get_coder(SourceRecord)
    assert isinstance(coder, RecordCoder)
    element = SourceRecord(file, number, record)
    # Alone, and within what Beam shuffles.
    for each, value in (
        (coder, element),
        (beam.coders.TupleCoder((coder, coder)), (element, element)),
    ):
        again = pickle.loads(pickle.dumps(each))
        assert again == each
        back = again.decode(each.encode(value))
        assert back == value
    assert type(coder.decode(coder.encode(element))) is SourceRecord


def test_records_with_sources_are_keys(tmp_path: pathlib.Path) -> None:
    """Of a shuffle, that is, which takes keys with deterministic coders alone."""
    records = text_records(20)
    write_tfrecords(tmp_path / "in", records)
    found = run(
        ReadTFRecords(tmp_path / "in", with_source=True),
        beam.Distinct(),
        beam.Reshuffle(),
    )
    assert all(type(each) is SourceRecord for each in found)
    in_order = sorted(found, key=lambda source: source.place)
    assert [each.record for each in in_order] == records


@pytest.mark.slow
def test_between_processes(tmp_path: pathlib.Path) -> None:
    records = text_records(20)
    write_tfrecords(tmp_path / "in", records)
    read = ReadTFRecords(tmp_path / "in", with_source=True)
    found = run(read, beam.Reshuffle(), argv=WORKER_PROCESSES)
    assert all(type(each) is SourceRecord for each in found)
    assert sorted(each.record for each in found) == sorted(records)
