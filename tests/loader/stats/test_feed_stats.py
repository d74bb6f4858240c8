"""What a feed counts."""

import time

import pytest

from gristmill import loader
from gristmill.loader.stats.feed_stats import (
    FeedStats,
    Meter,
    ReadBatch,
)
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(40, seed=1), text_records(59, seed=2)]


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> loader.GlobalBatches:
    dataset = loader.open(convert(tmp_path_factory.mktemp("data"), FILES))
    return loader.global_batches(dataset, batch_size=20, epochs=2)


def test_waiting_working_and_starting_are_told_apart():
    now = 100.0
    meter = Meter(now=lambda: now)
    batch = ReadBatch(
        step=0,
        batch=None,
        records=10,
        record_bytes=1000,
        read_seconds=0.25,
        read_cpu_seconds=0.125,
        decode_seconds=0.5,
        read_queued_seconds=0.0625,
        decode_cpu_seconds=0.375,
        decode_queued_seconds=0.03125,
        transfer_seconds=0.5,
        cache=loader.CacheCounts(hits=6, misses=4, filled_bytes=1 << 20, evictions=1),
    )
    for asked, given in [(0, 7), (8, 8.5), (10, 13)]:
        now = 100.0 + asked
        meter.asked()
        now = 100.0 + given
        assert meter.current().current_wait_seconds == given - asked
        meter.given(batch)
    before = meter.stats
    meter.restart()
    for asked, given in [(50, 54), (56, 56)]:
        now = 100.0 + asked
        meter.asked()
        now = 100.0 + given
        meter.given(batch)
    meter.asked()
    meter.failed()
    now += 100
    stats = meter.current()
    assert stats == FeedStats(
        batches=5,
        records=50,
        record_bytes=5000,
        startups=2,
        startup_seconds=11,
        wait_seconds=3.5,
        busy_seconds=4.5,
        read_seconds=1.25,
        read_cpu_seconds=0.625,
        read_queued_seconds=0.3125,
        decode_seconds=2.5,
        decode_cpu_seconds=1.875,
        decode_queued_seconds=0.15625,
        transfer_seconds=2.5,
        cache=loader.CacheCounts(hits=30, misses=20, filled_bytes=5 << 20, evictions=5),
    )
    since = meter.current(ready_batches=1, workers=2) - before
    assert (since.batches, since.startups, since.startup_seconds) == (2, 1, 4)
    assert (since.wait_seconds, since.busy_seconds) == (0, 2)
    assert since.cache == loader.CacheCounts(
        hits=12, misses=8, filled_bytes=2 << 20, evictions=2
    )
    assert (since.ready_batches, since.workers) == (1, 2)
    assert stats.batches_per_second == 3 / 8
    assert stats.records_per_second == 30 / 8
    assert stats.record_bytes_per_second == 3000 / 8
    assert stats.waiting_share == 3.5 / 8
    assert FeedStats().records_per_second == FeedStats().waiting_share == 0


def slow(records):
    time.sleep(0.05)
    return records


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_slow_decode_makes_the_trainer_wait(batches, workers):
    with batches.feed(host=(1, 2), workers=workers, prefetch=1, decode=slow) as feed:
        read = [record for batch in feed for record in batch]
        stats = feed.stats
    assert (stats.batches, stats.records) == (batches.steps, len(read)) == (9, 90)
    assert stats.record_bytes == sum(map(len, read))
    assert stats.startups == 1
    assert stats.decode_seconds >= 9 * 0.05
    assert stats.wait_seconds >= 4 * 0.05
    assert stats.waiting_share > 0.8
    assert 0 < stats.read_cpu_seconds <= stats.read_seconds + 0.01
    assert stats.decode_cpu_seconds < stats.decode_seconds
    assert stats.workers == workers
    # Through shared memory; threads pass a batch as it is.
    assert (stats.transfer_seconds > 0) == (workers > 0)
