"""The cost page: its arithmetic, and that it is what the program writes."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.dataflow_cost import (
    PAGE,
    TERABYTE,
    costs_of,
    from_bucket,
    measured,
    page,
)
from gristmill.pipelines.advice.cost import Assumptions, Measured, Prices, cost_of
from tests.support.cloud import running


def test_page_is_what_the_program_writes():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run python -m benchmarks.dataflow_cost"
    )


def test_page_holds_the_numbers_of_a_terabyte():
    fast, slow = costs_of().values()
    # Waiting for machines to start takes the same with slower ones.
    assert slow.vcpu_hours > 1.5 * fast.vcpu_hours
    assert (
        from_bucket().cpu_seconds_per_gb > 1.5 * measured("records").cpu_seconds_per_gb
    )
    for cost in (fast, slow):
        for number in (
            f"{cost.vcpu_hours:.1f}",
            f"${cost.workers:.2f}",
            f"{cost.class_a:,}",
            f"{cost.class_b:,}",
            f"**${cost.workers + cost.requests:.2f}**",
        ):
            assert f" {number} |" in page()
    assert "Nothing was measured on Google" in page()


def test_arithmetic():
    found = Measured(cpu_seconds_per_gb=36.0, output_ratio=0.5, cpu="made up")
    given = Assumptions(
        busy=0.5, start_minutes=6, vcpus=4, memory_gb=10, disk_gb=100, machines=5
    )
    prices = Prices(
        vcpu_hour=1, memory_gb_hour=0.1, disk_gb_hour=0.01, class_a=2, class_b=3
    )
    cost = cost_of(1000 * 10**9, found, prices=prices, given=given)
    # 36,000 s of work at half speed are 20 hours; 20 vCPUs start for 0.1 hours each.
    assert cost.vcpu_hours == pytest.approx(22)
    assert cost.minutes == pytest.approx(66)
    assert cost.workers == pytest.approx(22 * 1 + 5.5 * 10 * 0.1 + 5.5 * 100 * 0.01)
    shards = -(-(10**12) // (256 << 20))
    assert cost.class_a == 2 * shards + 4
    assert cost.class_b == 8 * shards + -(-(10**12) // (8 << 20)) + shards
    assert cost.requests == 2 * cost.class_a + 3 * cost.class_b
    assert cost.between_regions == pytest.approx(1500 * 0.02)


@pytest.mark.parametrize(
    "change",
    [
        {"busy": 0.35},
        {"vcpu_speed": 0.5},
        {"start_minutes": 40.0},
        {"shard_bytes": 1 << 20},
    ],
)
def test_assumptions_matter(change):
    found = measured("records")
    worse = dataclasses.replace(Assumptions(), **change)
    before, after = cost_of(TERABYTE, found), cost_of(TERABYTE, found, given=worse)
    assert after.workers + after.requests > 1.2 * (before.workers + before.requests)


@pytest.mark.slow
def test_requests_for_a_shard_are_not_more_than_assumed():
    def counted(shards: int) -> tuple[int, int]:
        with running() as cloud:
            done = cloud.gristmill(
                *("convert", "gs://raw/texts/*", "gs://data/texts", "--workers=1"),
                f"--num-shards={shards}",
            )
            assert done.code == 0, done.stderr
            requests = cloud.storage.requests
            # Lists as well come from the view of progress, now and then.
            writes = requests["insert"] + requests["start"]
            return writes, sum(requests[kind] for kind in ("media", "stat", "bucket"))

    few, many = counted(4), counted(12)
    given = Assumptions()
    assert (many[0] - few[0]) / 8 == given.class_a_per_shard
    # Of small shards, the input is read with the requests that are assumed besides:
    # a few more or less, as it happens to be fetched ahead.
    assert (many[1] - few[1]) // 8 <= given.class_b_per_shard
