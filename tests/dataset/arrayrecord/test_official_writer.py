"""The official writer: what it writes, and that its failures are told."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.arrayrecord.official_writer import (
    OfficialWriter,
    WriterError,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from tests.support.records import read_array_records, text_records


def test_round_trip(tmp_path: pathlib.Path):
    records = text_records(50)
    writer = OfficialWriter(str(tmp_path / "a"), WriterOptions(group_size=7))
    writer.write(records[:20])
    writer.write(records[20:])
    writer.finish()
    assert read_array_records(tmp_path / "a") == records


def test_what_cannot_be_created(tmp_path: pathlib.Path):
    with pytest.raises(FileNotFoundError):
        OfficialWriter(str(tmp_path / "missing" / "a"), WriterOptions())


def test_writing_to_a_closed_file(tmp_path: pathlib.Path):
    writer = OfficialWriter(str(tmp_path / "a"), WriterOptions())
    writer.finish()
    with pytest.raises(WriterError):
        writer.write([b"a"])
    with pytest.raises(WriterError):
        writer.finish()
