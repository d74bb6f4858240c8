"""Stats of feeds for Prometheus, computed when it scrapes them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from gristmill.loader.stats.metrics import (
    COUNTERS,
    GAUGES,
    WAITS_FOR,
    WAITS_FOR_TEXT,
    Feeds,
    HasStats,
)

# Metrics of one name come from one collector, which has all feeds of its registry.
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _FeedCollector]
_collectors = weakref.WeakKeyDictionary()
_exporting = threading.Lock()


def export_stats(
    feed: HasStats, *, name: str, registry: CollectorRegistry = REGISTRY
) -> None:
    """Exports the stats of a feed to Prometheus, as metrics gristmill_feed_*.

    `gristmill_feed_waits_for` has a label `cause`, and is 1 for the cause of waiting in
    the last minute, as found by `waits_for`.

    They are removed when the feed is freed. prometheus_client serves them, for example
    by its `start_http_server`.

    Args:
        feed: A feed, or the result of `to_jax` for one.
        name: Its label `feed`, such as "train".
        registry: Where to export the stats; by default the registry of
            prometheus_client.

    Raises:
        InputError: The registry has another feed of that name.
    """
    with _exporting:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _collectors[registry] = _FeedCollector()
            registry.register(collector)
        collector.feeds.add(name, feed)


class _FeedCollector(Collector):
    def __init__(self) -> None:
        self.feeds = Feeds()

    def collect(self) -> Iterator[Metric]:
        for field, text in (COUNTERS | GAUGES).items():
            kind = CounterMetricFamily if field in COUNTERS else GaugeMetricFamily
            metric = "gristmill_feed_" + field.replace(".", "_")
            family = kind(metric, text, labels=["feed"])
            for each in self.feeds.values(field):
                family.add_metric([each.feed], each.value)
            yield family
        causes = GaugeMetricFamily(
            f"gristmill_feed_{WAITS_FOR}", WAITS_FOR_TEXT, labels=["feed", "cause"]
        )
        for each in self.feeds.values(WAITS_FOR):
            causes.add_metric([each.feed, each.cause or ""], each.value)
        yield causes
