"""What a feed counts, and what Prometheus gets of it.

Covers: loader/feed/prometheus.py.
"""

import gc
import time
import urllib.request

import prometheus_client
import pytest

from gristmill import loader
from gristmill.dataset.errors import InputError
from gristmill.loader.feed import stats as feed_stats
from gristmill.loader.feed.stats import FeedStats, Meter, ReadBatch
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(40, seed=1), text_records(59, seed=2)]


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> loader.GlobalBatches:
    dataset = loader.open(convert(tmp_path_factory.mktemp("data"), FILES))
    return loader.global_batches(dataset, batch_size=20, epochs=2)


def test_waiting_working_and_starting_are_told_apart(monkeypatch):
    now = 100.0
    monkeypatch.setattr(feed_stats.time, "perf_counter", lambda: now)
    meter = Meter()
    batch = ReadBatch(
        step=0,
        batch=None,
        records=10,
        record_bytes=1000,
        read_seconds=0.25,
        read_cpu_seconds=0.125,
        decode_seconds=0.5,
        cache=loader.CacheCounts(hits=6, misses=4, filled_bytes=1 << 20, evictions=1),
    )
    for asked, given in [(0, 7), (8, 8.5), (10, 13)]:
        now = 100.0 + given
        meter.given(batch, asked_at=100.0 + asked)
    meter.restart()
    for asked, given in [(50, 54), (56, 56)]:
        now = 100.0 + given
        meter.given(batch, asked_at=100.0 + asked)
    stats = meter.stats
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
        decode_seconds=2.5,
        cache=loader.CacheCounts(hits=30, misses=20, filled_bytes=5 << 20, evictions=5),
    )
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
    with batches.feed(
        process_index=1, process_count=2, workers=workers, prefetch=1, decode=slow
    ) as feed:
        read = [record for batch in feed for record in batch]
        stats = feed.stats
    assert (stats.batches, stats.records) == (batches.steps, len(read)) == (9, 90)
    assert stats.record_bytes == sum(map(len, read))
    assert stats.startups == 1
    assert stats.decode_seconds >= 9 * 0.05
    assert stats.wait_seconds >= 4 * 0.05
    assert stats.waiting_share > 0.8
    assert 0 < stats.read_cpu_seconds <= stats.read_seconds + 0.01


@pytest.mark.alone
def test_a_slow_trainer_finds_batches_ready(batches):
    with batches.feed(process_index=0, process_count=1, prefetch=3) as feed:
        for _ in range(5):
            next(feed)
            time.sleep(0.05)
            while feed.stats.ready_batches < 3:
                time.sleep(0.01)
        stats = feed.stats
    assert stats.prefetch == 3
    assert stats.busy_seconds >= 4 * 0.05
    assert stats.waiting_share < 0.4


def test_prometheus_gets_the_stats_of_all_feeds_that_live(batches):
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    train = batches.feed(process_index=0, process_count=1)
    other = batches.feed(process_index=0, process_count=1)
    loader.export_stats(train, name="train", registry=registry)
    loader.export_stats(other, name="eval", registry=registry)
    with pytest.raises(InputError, match="another feed has that name"):
        loader.export_stats(other, name="train", registry=registry)
    for _ in range(3):
        next(train)
    server, thread = prometheus_client.start_http_server(
        0, addr="127.0.0.1", registry=registry
    )
    try:
        address = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(address) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert 'gristmill_feed_records_total{feed="train"} 60.0' in lines
    assert 'gristmill_feed_records_total{feed="eval"} 0.0' in lines
    assert 'gristmill_feed_prefetch{feed="train"} 2.0' in lines
    assert 'gristmill_feed_cache_hits_total{feed="train"} 0.0' in lines
    assert len([line for line in lines if line.startswith("# TYPE")]) == 15
    other.close()
    del other
    gc.collect()
    labels = {"feed": "eval"}
    assert registry.get_sample_value("gristmill_feed_batches_total", labels) is None
    train.close()
