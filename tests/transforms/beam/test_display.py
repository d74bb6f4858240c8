"""Display data: what a runner's page shows of each transform."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2

from gristmill.transforms import (
    ConversionJob,
    ConvertFiles,
    IndexArrayRecords,
    PlanOptions,
    ReadAllArrayRecords,
    ReadAllTFRecords,
    ReadArrayRecords,
    ReadTFRecords,
    VerifyDataset,
    WriteArrayRecords,
)


def shown(transform: Any, *before: Any) -> dict[str, Any]:
    """Returns label and value of all items, as a runner gets them."""
    pipeline = beam.Pipeline()
    applied: Any = pipeline
    for step in before:
        applied = applied | step
    applied | "Shown" >> transform
    (node,) = (
        node
        for node in pipeline.to_runner_api().components.transforms.values()
        if node.unique_name == "Shown"
    )
    found = {}
    for item in node.display_data:
        payload = beam_runner_api_pb2.LabelledPayload.FromString(item.payload)
        value = payload.WhichOneof("value")
        found[payload.label] = value and getattr(payload, value)
    return found


@pytest.mark.slow
def test_readers_show_inputs() -> None:
    found = shown(ReadTFRecords([f"in/{n}" for n in range(9)], with_source=True))
    assert found["Input"] == "in/0, in/1, in/2 and 6 more"
    assert (found["With source"], found["Range bytes"]) == (True, 64 << 20)
    found = shown(ReadArrayRecords("data/c4", split="test"))
    assert (found["Input"], found["Split"]) == ("data/c4", "test")
    assert "Split" not in shown(ReadArrayRecords("data/c4"))
    assert shown(VerifyDataset("data/c4"))["Input"] == "data/c4"
    found = shown(ReadAllTFRecords(range_bytes=7), beam.Create(["in"]))
    assert found["Range bytes"] == 7
    found = shown(ReadAllArrayRecords(split="test"), beam.Create(["in"]))
    assert found["Split"] == "test"


def test_writers_show_output_and_plan() -> None:
    found = shown(WriteArrayRecords("data/c4", num_shards=3), beam.Create([b"a"]))
    assert (found["Output"], found["Name"], found["Split"]) == (
        "data/c4",
        "c4",
        "train",
    )
    assert found["Num shards"] == 3
    assert "Shard bytes" not in found
    assert found["Writer"].startswith("group_size:1,")
    found = shown(IndexArrayRecords(files=("old/x", "old/y"), name="old"))
    assert (found["Input"], found["Name"]) == ("old/x, old/y", "old")


def test_a_conversion_shows_all_splits() -> None:
    jobs = (
        ConversionJob(
            inputs=("in/train*",),
            output="out",
            name="c4",
            plan=PlanOptions(kind="num_shards", value=8),
        ),
        ConversionJob(
            inputs=("in/a", "in/b"),
            output="out",
            name="c4",
            split="test",
            plan=PlanOptions(kind="match_shards", value=None),
        ),
    )
    found = shown(ConvertFiles(jobs=jobs))
    assert found["Output"] == "out"
    assert (found["Input train"], found["Plan train"]) == ("in/train*", "num_shards=8")
    assert (found["Input test"], found["Plan test"]) == ("in/a, in/b", "match_shards")
