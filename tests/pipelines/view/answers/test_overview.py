"""The overview of a dataset, compared with its files."""

from __future__ import annotations

import os

import numpy as np

from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.shards import ShardColumns, shards_chart
from tests.pipelines.view.conftest import FILES


def test_counts_and_sizes_are_those_of_the_files(opened, dataset, records) -> None:
    found = ask(opened, "api/overview")
    shards = sorted(p for p in os.listdir(dataset) if "array_record" in p)
    sizes = [os.path.getsize(os.path.join(dataset, name)) for name in shards]
    assert (found["records"], found["shards"]) == (len(records), len(FILES))
    assert found["raw_bytes"] == sum(map(len, records))
    assert found["file_bytes"] == sum(sizes)
    assert found["ratio"] == found["raw_bytes"] / found["file_bytes"]
    assert found["kind"] == "records"
    assert [(e["number"], e["records"]) for e in found["editions"]] == [
        (1, len(records))
    ]
    assert found["editions"][0]["made_by"] == found["gristmill"]
    assert found["editions"][0]["how"] == "convert"
    assert not found["editions"][0]["replaced"]
    chart = found["shards_chart"]
    assert chart["per_bucket"] == 1
    assert chart["first"] == list(range(len(FILES)))
    assert chart["records"]["max"] == chart["records"]["min"] == list(FILES)
    assert chart["bytes"]["median"] == sizes
    largest = [one["shard"] for one in found["largest_shards"]]
    assert largest == sorted(range(len(sizes)), key=lambda n: (-sizes[n], n))
    assert found["order"]["batch_size"] == 8
    assert found["order"]["steps"] is None
    assert found["order"]["epoch_steps"] == -(-len(records) // 8)


def test_counts_of_packed_rows(packed) -> None:
    found = ask(packed, "api/overview")
    counts = packed.datasets[""].packed_counts()
    assert found["kind"] == "packed"
    assert found["packed_counts"]["tokens"] == counts.tokens
    assert found["packed_counts"]["length"] == 32
    assert dict(found["packed"])["tokenizer"] == "not known"


def test_a_chart_of_many_shards_has_a_median_of_each_bucket() -> None:
    values = np.random.default_rng(3).integers(0, 1000, 1203)
    chart = shards_chart(ShardColumns(values, values, None))
    assert chart is not None
    assert chart.per_bucket == 4
    assert len(chart.first) == len(chart.records.median) == 301
    for bucket, first in enumerate(chart.first):
        here = values[first : first + 4]
        assert chart.records.min[bucket] == here.min()
        assert chart.records.median[bucket] == np.median(here)
        assert chart.records.max[bucket] == here.max()
