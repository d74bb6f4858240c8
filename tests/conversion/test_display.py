"""Display data: what a runner's page shows of each transform, from its fields."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from apache_beam.transforms.display import DisplayData

from gristmill.transforms import (
    ConversionJob,
    ConvertFiles,
    IndexArrayRecords,
    PackOptions,
    ReadAllRecords,
    ReadArrayRecords,
    ReadRecords,
    ReadTFRecords,
    RecordOptions,
    VerifyDataset,
    WriteArrayRecords,
)

FILES = [f"in/{n}" for n in range(9)]
TOKENS = RecordOptions(input_format="jsonl", columns=("text",))
JOB = ConversionJob(
    inputs=("in",),
    output="out",
    name="c4",
    records=TOKENS,
    pack=PackOptions(length=64, column="text"),
    map="module:function",
)


def shown(transform: Any) -> dict[str, Any]:
    """Returns label and value of all items, as a runner gets them."""
    return {item.label: item.value for item in DisplayData.create_from(transform).items}


@pytest.mark.parametrize(
    "transform",
    [
        ConvertFiles(jobs=(JOB,), tfds_directory="in", overwrite=True),
        IndexArrayRecords(files="in", name="n", split="s"),
        *(ReadRecords("in", split="s", records=TOKENS), ReadAllRecords(records=TOKENS)),
        *(ReadTFRecords("in"), ReadArrayRecords("in", split="s")),
        WriteArrayRecords("out", num_shards=3, shard_bytes=9, keyed=True),
        VerifyDataset("in"),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_all_fields_that_are_set_are_shown(transform: Any) -> None:
    found = shown(transform)
    for field in dataclasses.fields(transform):
        value = getattr(transform, field.name)
        if value is not None and field.name != "jobs":
            assert field.name.replace("_", " ").capitalize() in found


def test_values_are_short() -> None:
    found = shown(ReadTFRecords(FILES, with_source=True))
    assert found["Inputs"] == "in/0, in/1, in/2 and 6 more"
    assert (found["With source"], found["Range bytes"]) == (True, 64 << 20)
    assert found["Records"] == "input_format=tfrecord"
    assert "Split" not in found
    found = shown(ConvertFiles(jobs=(JOB,)))
    assert (found["Input train"], found["Map"]) == ("in", "module:function")
    assert found["Plan train"] == f"shard_bytes={256 << 20}"
    assert found["Records"] == "input_format=jsonl, columns=('text',)"
    assert found["Pack"] == "length=64"
    assert shown(WriteArrayRecords("a/b"))["Name"] == "b"
