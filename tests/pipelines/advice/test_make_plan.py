"""A plan of real files, beside what the command that it prints then makes."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.advice import make_plan as make_plan_module
from gristmill.pipelines.advice.advised_plan import Candidate, Epoch, Plan
from gristmill.pipelines.advice.cost import Measured, Prices, cost_of
from gristmill.pipelines.advice.encoded_sizes import Estimate
from gristmill.pipelines.advice.make_plan import make_plan
from gristmill.pipelines.options.conversions import ConvertOptions
from tests.support.records import frames_of


def test_dollars_are_prices_times_what_is_used() -> None:
    found = Measured(cpu_seconds_per_gb=8.0, output_ratio=0.5, cpu="any")
    prices = Prices(vcpu_hour=2 * Prices().vcpu_hour)
    once, twice = cost_of(10**12, found), cost_of(10**12, found, prices=prices)
    assert once.vcpu_hours == twice.vcpu_hours
    assert once.requests == twice.requests
    assert once.workers < twice.workers < 2 * once.workers


def plan_of(**more: object) -> Plan:
    fields = {
        "inputs": {
            "files": 2,
            "bytes": 1 << 40,
            "format": "TFRecord",
            "splits": ["train", "test"],
        },
        "sample": {"ranges": 64, "records": 7000, "share": 0.0001, "whole": False},
        "records": Estimate(5e8, 1e7),
        "raw_bytes": Estimate(1e12),
        "lengths": {"mean": 2000.0, "median": 900.0, "p99": 9000.0, "most": 40_000.0},
        "candidates": (
            Candidate(
                compression="zstd:3",
                group_size=1,
                file_bytes=Estimate(2.0**39, 2.0**32),
                index_bytes=4e9,
                encode_seconds=9000.0,
                chosen=True,
            ),
        ),
        "file_bytes": Estimate(2.0**39, float("inf")),
        "shards": 4096,
        "index_bytes": 2.0**32,
        "hosts": 8,
        "batch_size": 1024,
        "epochs": (
            Epoch(
                shuffle="global",
                requests=5e8,
                read_bytes=2.0**39,
                dollars=200.0,
                chosen=True,
            ),
        ),
        "first_requests": 32_784.0,
        "first_dollars": 0.01,
        "storage_dollars": 11.0,
        "workers": 2,
        "cpu_seconds": 18_000.0,
        "cpu_seconds_per_worker": 9000.0,
        "minutes": 150.0,
        "dataflow": {
            "machines": 10,
            "vcpus": 4,
            "vcpu_hours": 9.0,
            "minutes": 15.0,
            "dollars": 0.7,
        },
        "reasons": ("compression zstd:3: for a reason",),
        "notes": ("a note",),
        "command": "gristmill convert in out",
    }
    return Plan(**{**fields, **more})  # type: ignore[arg-type]


def test_a_plan_as_text_and_as_json() -> None:
    text = plan_of().text()
    for part in (
        "2 files, 1.0 TiB of TFRecord, splits train, test",
        "500,000,000 ±2.0%, 2.0 KiB on average",
        "512.0 GiB (error unknown): 4,096 shards",
        "4.0 GiB on each host",
        "512.0 GiB ±0.8%  50.0%     2.5 h          chosen",
        "global         500,000,000        $200.00  512.0 GiB  advised",
        "2.5 h each      2.5 h",
        "why\n  compression zstd:3: for a reason",
        "command\n  gristmill convert in out",
    ):
        assert part in text, text
    assert '"error": null' in plan_of().json()


def test_inputs_without_records_are_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing.py").write_text("def nothing(record):\n    return None\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tfrecord").write_bytes(frames_of([b"a"]))
    monkeypatch.chdir(tmp_path)
    options = ConvertOptions(input=("in",), output="out", map="nothing:nothing")
    with pytest.raises(InputError, match="holds no records"):
        make_plan(options, hosts=1, batch_size=None, workers=1)


def test_a_slow_chunk_hash_is_noted() -> None:
    assert make_plan_module._notes([], compiled=True) == []
    (note,) = make_plan_module._notes([], compiled=False)
    assert "chunk hash" in note
    assert "gristmill doctor" in note
