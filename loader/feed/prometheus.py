"""Stats of feeds for Prometheus, computed when it scrapes them."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from gristmill.dataset.errors import InputError
from gristmill.loader.feed.stats import FeedStats

_COUNTERS = {
    "batches": "Batches given to the trainer",
    "records": "Records given to the trainer",
    "record_bytes": "Bytes of records given to the trainer",
    "startup_seconds": "Time that the trainer waited for first batches",
    "wait_seconds": "Time that the trainer waited for all other batches",
    "busy_seconds": "Time that the trainer worked",
    "read_seconds": "Time that reading took, in all threads or workers",
    "read_cpu_seconds": "Processor time that reading took",
    "decode_seconds": "Time that decode took, in all threads or workers",
    "cache.hits": "Records read from local copies of shards",
    "cache.misses": "Records read from object storage, without a local copy",
    "cache.filled_bytes": "Bytes fetched for local copies of shards",
    "cache.evictions": "Local copies of shards that were deleted",
}
_GAUGES = {
    "ready_batches": "Batches that are ready",
    "prefetch": "Most batches that can be ready",
}

# Metrics of one name come from one collector, which has all feeds of its registry.
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _FeedCollector]
_collectors = weakref.WeakKeyDictionary()
_exporting = threading.Lock()


class HasStats(Protocol):
    """A feed, or what `to_jax` returned for one."""

    @property
    def stats(self) -> FeedStats:
        """What it has done so far."""


def export_stats(
    feed: HasStats, *, name: str, registry: CollectorRegistry = REGISTRY
) -> None:
    """Exports the stats of a feed to Prometheus, as metrics gristmill_feed_*.

    They are removed when the feed is freed. prometheus_client serves them, for example
    by its `start_http_server`.

    Args:
        feed: A feed, or what `to_jax` made of one.
        name: Its label `feed`, such as "train".
        registry: Where to export it; by default the registry of prometheus_client.

    Raises:
        InputError: The registry has another feed of that name.
    """
    with _exporting:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _collectors[registry] = _FeedCollector()
            registry.register(collector)
        other = collector.feeds.get(name)
        if other is not None and other is not feed:
            raise InputError(
                "another feed has that name", got=repr(name), cure="choose another name"
            )
        collector.feeds[name] = feed


class _FeedCollector(Collector):
    def __init__(self) -> None:
        self.feeds: weakref.WeakValueDictionary[str, HasStats]
        self.feeds = weakref.WeakValueDictionary()

    def collect(self) -> Iterator[Metric]:
        stats = {name: feed.stats for name, feed in sorted(self.feeds.items())}
        for field, text in (_COUNTERS | _GAUGES).items():
            kind = CounterMetricFamily if field in _COUNTERS else GaugeMetricFamily
            metric = "gristmill_feed_" + field.replace(".", "_")
            family = kind(metric, text, labels=["feed"])
            for name, values in stats.items():
                family.add_metric([name], operator.attrgetter(field)(values))
            yield family
