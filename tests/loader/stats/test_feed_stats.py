"""What a feed counts, and what is exported of it."""

import dataclasses
import gc
import time
import urllib.request

import prometheus_client
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.loader.stats import metrics
from gristmill.loader.stats.causes import CAUSES
from gristmill.loader.stats.feed_stats import (
    FeedStats,
    Meter,
    ReadBatch,
    usable_processors,
)
from gristmill.loader.stats.metrics import COUNTERS, GAUGES, Feeds
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(40, seed=1), text_records(59, seed=2)]


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> loader.GlobalBatches:
    dataset = loader.open(convert(tmp_path_factory.mktemp("data"), FILES))
    return loader.global_batches(dataset, batch_size=20, epochs=2)


def test_waiting_working_and_starting_are_told_apart(monkeypatch):
    now = 100.0
    # The thread works half of the time.
    meter = Meter(now=lambda: now, cpu_now=lambda: now / 2)
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
        busy_cpu_seconds=2.25,
        read_seconds=1.25,
        read_cpu_seconds=0.625,
        read_queued_seconds=0.3125,
        decode_seconds=2.5,
        decode_cpu_seconds=1.875,
        decode_queued_seconds=0.15625,
        transfer_seconds=2.5,
        cache=loader.CacheCounts(hits=30, misses=20, filled_bytes=5 << 20, evictions=5),
    )
    since = meter.current(ready_batches=1, makers=2) - before
    assert (since.batches, since.startups, since.startup_seconds) == (2, 1, 4)
    assert (since.wait_seconds, since.busy_seconds) == (0, 2)
    assert since.cache == loader.CacheCounts(
        hits=12, misses=8, filled_bytes=2 << 20, evictions=2
    )
    assert (since.ready_batches, since.makers) == (1, 2)
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
    assert stats.decode_cpu_seconds < stats.decode_seconds
    assert (stats.workers, stats.makers) == (workers, 1)
    assert stats.processors == usable_processors()
    # Through shared memory; threads pass a batch as it is.
    assert (stats.transfer_seconds > 0) == (workers > 0)


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
    fields = len(COUNTERS) + len(GAUGES) + 1
    assert len([line for line in lines if line.startswith("# TYPE")]) == fields
    causes = [line for line in lines if "waits_for{" in line and '"train"' in line]
    assert len(causes) == len(CAUSES)
    assert sum(line.endswith(" 1.0") for line in causes) == 1
    other.close()
    del other
    gc.collect()
    labels = {"feed": "eval"}
    assert registry.get_sample_value("gristmill_feed_batches_total", labels) is None
    train.close()


def test_opentelemetry_gets_what_prometheus_gets(batches):
    registry = prometheus_client.CollectorRegistry()
    reader = InMemoryMetricReader()
    provider = MeterProvider(
        metric_readers=[reader, PrometheusMetricReader(registry=registry)]
    )
    plain = prometheus_client.CollectorRegistry()
    train = batches.feed(process_index=0, process_count=1)
    other = batches.feed(process_index=0, process_count=1)
    for name, feed in (("train", train), ("eval", other)):
        loader.export_to_opentelemetry(feed, name=name, provider=provider)
        loader.export_stats(feed, name=name, registry=plain)
    with pytest.raises(InputError, match="another feed has that name"):
        loader.export_to_opentelemetry(other, name="train", provider=provider)
    for _ in range(3):
        next(train)
    while train.stats.ready_batches < train.stats.prefetch:
        time.sleep(0.001)

    def samples(where):
        # Without the time that goes on, and labels of the library.
        return {
            (sample.name, sample.labels["feed"], sample.labels.get("cause")): (
                family.type,
                sample.value,
            )
            for family in where.collect()
            for sample in family.samples
            if sample.name.startswith("gristmill_")
        }

    assert samples(registry) == samples(plain)
    assert samples(plain)["gristmill_feed_records_total", "train", None] == (
        "counter",
        60.0,
    )
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    metrics = {metric.name: metric for metric in scope.metrics}
    assert metrics["gristmill.feed.record"].unit == "By"
    assert metrics["gristmill.feed.wait"].unit == "s"
    points = metrics["gristmill.feed.records"].data.data_points
    assert {point.attributes["feed"]: point.value for point in points} == {
        "train": 60,
        "eval": 0,
    }
    other.close()
    del other, feed
    gc.collect()
    assert {feed for _, feed, _ in samples(registry)} == {"train"}
    train.close()
    provider.shutdown()


class Scraped:
    def __init__(self) -> None:
        self.stats = FeedStats()


def test_the_cause_is_that_of_the_last_minute(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    feeds, feed = Feeds(), Scraped()
    feeds.add("train", feed)

    def cause():
        values = list(feeds.values("waits_for"))
        assert {value.feed for value in values} == {"train"}
        (found,) = (value.cause for value in values if value.value)
        return found

    assert cause() == "unknown"
    for _ in range(10):  # Slow storage, then a slow trainer.
        now += 15
        feed.stats = dataclasses.replace(
            feed.stats,
            batches=feed.stats.batches + 10,
            wait_seconds=feed.stats.wait_seconds + 14,
            busy_seconds=feed.stats.busy_seconds + 1,
            read_seconds=feed.stats.read_seconds + 14,
            makers=2,
        )
        assert cause() == "storage"
    assert cause() == "storage"  # Nothing new.
    found = []
    for _ in range(6):
        now += 15
        feed.stats = dataclasses.replace(
            feed.stats,
            batches=feed.stats.batches + 10,
            busy_seconds=feed.stats.busy_seconds + 15,
        )
        found.append(cause())
    assert found[0] == "storage"
    assert found[4:] == ["trainer"] * 2
