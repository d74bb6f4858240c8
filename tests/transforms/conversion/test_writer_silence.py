"""Warnings of workers that will not answer while they compress a large record."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib

import pytest

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.transforms.beam import convert_files as convert_tfrecords
from gristmill.transforms.conversion.writer_silence import silence_notes
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.looked_files import LookedFiles
from tests.support.conversion import job_of
from tests.support.records import frames_of


def notes_of(path: pathlib.Path, **writer: object) -> list[str]:
    return silence_notes(WriterOptions(**writer), find_inputs([str(path)]))


@pytest.fixture
def large(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "in.tfrecord"
    path.write_bytes(frames_of([bytes(4_000_000)]))
    return path


@pytest.mark.parametrize(
    ("compression", "group_size", "seconds"),
    [
        *(("zstd:3", 1, None), ("zstd:9", 1, None), ("zstd:19", 1, None)),
        *(("snappy", 99, None), ("brotli:11", 1, 7), ("zstd:19", 4, 8)),
        *(("zstd:9", 64, 5), ("brotli:4", 100, None), ("uncompressed", 1, None)),
    ],
)
def test_what_takes_seconds_is_told(large, compression, group_size, seconds):
    options = {"compression": compression, "group_size": group_size}
    notes = notes_of(large, **options, writer="official")
    assert len(notes) == (seconds is not None)
    for note in notes:
        assert note.startswith(f"{compression} takes about {seconds} s for")
        assert "The default writer lets it answer" in note
    assert notes_of(large, **options) == []


def test_where_no_record_can_be_seen(tmp_path: pathlib.Path):
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(frames_of([bytes(4_000_000)])))
    assert notes_of(path, compression="brotli:11", writer="official") == []


def test_a_pipeline_logs_it(large, tmp_path, caplog):
    writer = WriterOptions(compression="brotli:11", writer="official")
    job = job_of(large, tmp_path / "out", writer=writer)
    looked = LookedFiles()
    (task,) = convert_tfrecords._list_files(job, False)
    looked.add(convert_tfrecords._look(task))
    convert_tfrecords._list_inputs(job, looked)
    assert "brotli:11 takes about 7 s for a record of 4 MB" in caplog.text
    caplog.clear()
    writer = dataclasses.replace(writer, compression="brotli:5")
    convert_tfrecords._list_inputs(dataclasses.replace(job, writer=writer), looked)
    assert not caplog.text
