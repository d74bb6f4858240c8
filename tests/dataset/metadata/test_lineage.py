"""Chains of datasets, each made of the one before: every record reaches its source."""

from __future__ import annotations

import pathlib
import random
import re
import shutil
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.formats.tfrecord.frame_layout import encode_frame
from gristmill.dataset.metadata.lineage import (
    Ancestor,
    ancestors_of,
    decode_lineage,
    encode_lineage,
    read_lineage,
)
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.sources import SourceFile
from tests.support.conversion import convert, job_of, varied_records
from tests.support.records import frames_of, write_array_records

STEPS: list[dict[str, Any]] = [
    {"plan": ("num_shards", 4), "writer": WriterOptions(group_size=3)},
    {"plan": ("num_shards", 7), "writer": WriterOptions(group_size=1)},
    {"plan": ("num_shards", 2), "writer": WriterOptions(group_size=40)},
    {"plan": ("match_shards", None), "writer": WriterOptions(group_size=1)},
]


def chain_of(folder: pathlib.Path, **first: Any) -> list[str]:
    """Converts the files in `in`, then each dataset into the next one."""
    convert(job_of(folder / "in", folder / "d0", **STEPS[0], **first))
    made = [str(folder / "d0")]
    for number, options in enumerate(STEPS[1:], 1):
        convert(job_of(made[-1], folder / f"d{number}", **options))
        made.append(str(folder / f"d{number}"))
    return made


def locations(dataset: str) -> list[tuple[loader.Location, bytes]]:
    opened = loader.open(dataset)
    batches = loader.global_batches(opened, batch_size=len(opened), shuffle="none")
    return [
        (batches.locate(0, row), record) for row, record in enumerate(batches.read(0))
    ]


def check_frame(location: loader.Location, record: bytes) -> None:
    begin = location.source_offset_bytes
    assert begin is not None, location.source_note
    data = pathlib.Path(location.source_path or "").read_bytes()
    assert data[begin:].startswith(encode_frame(record))


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        data = frames_of(varied_records(40, seed=number, most_bytes=400))
        (folder / f"{number}.tfrecord").write_bytes(data)
    return folder


@pytest.mark.slow
def test_three_datasets_later_every_frame_is_found(
    inputs: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    made = chain_of(tmp_path)
    before = [
        {record: location.shard for location, record in locations(dataset)}
        for dataset in made[:3]
    ]
    for dataset in made[:3]:
        shutil.rmtree(dataset)
    found = locations(made[3])
    for location, record in found:
        check_frame(location, record)
        if len(record) > 16:  # Short ones are there several times.
            passed = [shard.path for shard in location.passed]
            assert passed == [step[record] for step in reversed(before)]
    places = {(place.source_path, place.source_offset_bytes) for place, _ in found}
    assert len(found) == len(places) == 120


def test_damage_that_was_set_aside_before(
    inputs: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    path = inputs / "1.tfrecord"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    made = chain_of(tmp_path, on_corrupt="quarantine")
    for dataset in made[:3]:
        shutil.rmtree(dataset)
    found = locations(made[3])
    assert len(found) == 119
    for location, record in found:
        check_frame(location, record)


def test_records_that_were_lost_in_between(tmp_path: pathlib.Path) -> None:
    """No frame is certain then; nothing is guessed."""
    (tmp_path / "in").mkdir()
    records = [random.Random(n).randbytes(300) for n in range(90)]
    (tmp_path / "in" / "a.tfrecord").write_bytes(frames_of(records))
    convert(job_of(tmp_path / "in", tmp_path / "a", plan=("num_shards", 3)))
    shard = sorted((tmp_path / "a").glob("*.array_record*"))[1]
    data = bytearray(shard.read_bytes())
    data[5_000] ^= 1
    shard.write_bytes(data)
    convert(job_of(str(tmp_path / "a"), tmp_path / "b", on_corrupt="quarantine"))
    convert(job_of(str(tmp_path / "b"), tmp_path / "c"))
    found = locations(str(tmp_path / "c"))
    assert len(found) == 89
    source = frames_of(records)
    for location, record in found:
        assert location.source_offset_bytes is None
        assert "set aside or removed" in (location.source_note or "")
        begin, end = location.source_range_bytes or (0, 0)
        number = begin // 316 + (location.source_record_in_range or 0)
        assert records[number] == record
        assert encode_frame(record) in source[begin:end]
    # Where the list of what was set aside is gone, not even the number is certain.
    shutil.rmtree(tmp_path / "b" / "quarantine")
    notes = [location.source_note for location, _ in locations(str(tmp_path / "b"))]
    assert (
        notes.count("records of the range before this one were set aside, or left out")
        == 29
    )


def test_plain_files_and_functions(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    records = varied_records(60, seed=3)
    write_array_records(tmp_path / "in" / "a.array_record", records)
    convert(job_of(tmp_path / "in", tmp_path / "a", plan=("num_shards", 3)))
    here = "tests.dataset.metadata.test_lineage"
    convert(job_of(str(tmp_path / "a"), tmp_path / "b", map=f"{here}:upper"))
    convert(job_of(str(tmp_path / "b"), tmp_path / "c"))
    for number, (location, _) in enumerate(locations(str(tmp_path / "c"))):
        assert location.source_path == f"{tmp_path}/in/a.array_record"
        assert location.source_record == number
        assert "changed the records" in (location.source_note or "")
        assert [shard.path.rpartition("/")[0] for shard in location.passed] == [
            str(tmp_path / name) for name in "ba"
        ]
    convert(job_of(str(tmp_path / "a"), tmp_path / "d", map=f"{here}:twice"))
    convert(job_of(str(tmp_path / "d"), tmp_path / "e"))
    for location, _ in locations(str(tmp_path / "e")):
        assert (location.source_path or "").startswith(f"{tmp_path}/d/")
        assert "more or fewer records" in (location.source_note or "")


def upper(record: bytes) -> bytes:
    return record.upper() + b"!"


def twice(record: bytes) -> list[bytes]:
    return [record, record]


def test_it_is_read_as_it_was_written(
    inputs: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    made = chain_of(tmp_path)
    split = open_manifest(made[2]).splits["train"]
    ancestors = ancestors_of(made[2], "train", split)
    assert [one.dataset for one in ancestors] == [
        made[2],
        *(f"{one}/".rstrip("/") for one in made[1::-1]),
    ]
    assert [one.records for one in ancestors] == [120] * 3
    arrays = encode_lineage(ancestors)
    document = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "format.md"
    section = document.read_text().partition("\n## Lineage\n")[2].partition("\n## ")[0]
    cells = "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    named = {name.partition("_")[2] for name in arrays}
    assert {*re.findall(r"`(\w+)`", cells)} == named
    again = decode_lineage(arrays)
    for one, other in zip(again, ancestors, strict=True):
        assert [*one.files] == [*other.files]
        assert (one.dataset, one.split) == (other.dataset, other.split)
        assert one.columns.keys() == other.columns.keys()
        for name, column in other.columns.items():
            assert np.array_equal(one.columns[name], column)
    assert [one.dataset for one in read_lineage(made[2], split)] == made[1::-1]
    # Of what is damaged, nothing is used.
    arrays["lineage1_span_file"] = arrays["lineage1_span_file"][1:]
    assert len(decode_lineage(arrays)) == 1
    del arrays["lineage0_about"]
    assert decode_lineage(arrays) == ()


def ancestor(name: str, *shards: int) -> Ancestor:
    """A dataset whose shards were made of a file each."""
    count = len(shards)
    numbers = ("begin", "end", "start", "stop")
    regions = ("shard", "file", "begin", "end", "compressed", "begin_row", "end_row")
    columns: dict[str, Any] = {
        "records": np.array(shards),
        "span_ends": np.arange(1, count + 1),
        "span_file": np.arange(count),
        "span_records": np.array(shards),
        **{f"span_{field}_bytes": np.zeros(count, np.int64) for field in numbers},
        "span_whole": np.ones(count, bool),
        **{f"region_{field}": np.array([count - 1]) for field in regions},
    }
    files = [
        SourceFile(path=f"{name}{number}", compression="none")
        for number in range(count)
    ]
    return Ancestor(
        dataset=name, split="train", function=None, files=files, columns=columns
    )


def test_editions_are_joined() -> None:
    joined = Ancestor.joined([ancestor("a", 3, 4), ancestor("b", 5)])
    assert joined.records == 12
    found = [joined.taken(shard, 2) for shard in range(3)]
    assert [one and one.file.path for one in found] == ["a0", "a1", "b0"]
    assert [one and one.first_record for one in found] == [0, 3, 7]
    assert [one and len(one.regions) for one in found] == [0, 1, 1]
    assert joined.taken(0, 3) is None
