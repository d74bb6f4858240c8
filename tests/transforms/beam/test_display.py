"""Display data: what a runner's page shows of each transform."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability.api import beam_runner_api_pb2

from gristmill.transforms import (
    ReadAllRecords,
    ReadArrayRecords,
    ReadTFRecords,
    VerifyDataset,
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
    assert shown(VerifyDataset("data/c4"))["Dataset"] == "data/c4"
    found = shown(ReadAllRecords(range_bytes=7), beam.Create(["in"]))
    assert found["Range bytes"] == 7
    found = shown(ReadAllRecords(split="test"), beam.Create(["in"]))
    assert found["Split"] == "test"
