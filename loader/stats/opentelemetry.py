"""Stats of feeds for OpenTelemetry, computed on collection by its SDK."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator

from opentelemetry.metrics import (
    CallbackOptions,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from gristmill.loader.stats.metrics import (
    COUNTERS,
    GAUGES,
    WAITS_FOR,
    WAITS_FOR_TEXT,
    Feeds,
    HasStats,
)

# OpenTelemetry has units beside names, in the Unified Code for Units of Measure.
_UNITS = {"_seconds": "s", "_bytes": "By"}

# An instrument is created once per provider, and has all feeds of it.
_feeds: weakref.WeakKeyDictionary[MeterProvider, Feeds] = weakref.WeakKeyDictionary()
_exporting = threading.Lock()


def export_to_opentelemetry(
    feed: HasStats, *, name: str, provider: MeterProvider | None = None
) -> None:
    """Exports the stats of a feed to OpenTelemetry, as metrics gristmill.feed.*.

    An exporter to Prometheus gives them the same names as `export_stats`.

    They are removed when the feed is freed.

    Args:
        feed: A feed, or the result of `to_jax` for one.
        name: Its attribute `feed`, such as "train".
        provider: Where to export the stats; by default the global provider of meters.

    Raises:
        InputError: The provider has another feed of that name.
    """
    if provider is None:
        provider = get_meter_provider()
    with _exporting:
        feeds = _feeds.get(provider)
        if feeds is None:
            feeds = _feeds[provider] = Feeds()
            _make_instruments(provider, feeds)
        feeds.add(name, feed)


def _make_instruments(provider: MeterProvider, feeds: Feeds) -> None:
    meter = provider.get_meter("gristmill")
    for field, text in (COUNTERS | GAUGES | {WAITS_FOR: WAITS_FOR_TEXT}).items():
        name, unit = f"gristmill.feed.{field}", ""
        for ending, its_unit in _UNITS.items():
            if field.endswith(ending):
                name, unit = name.removesuffix(ending), its_unit
        make = (
            meter.create_observable_counter
            if field in COUNTERS
            else meter.create_observable_gauge
        )
        make(name, [_callback(feeds, field)], unit=unit, description=text)


def _callback(
    feeds: Feeds, field: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for each in feeds.values(field):
            labels = {"feed": each.feed}
            if each.cause is not None:
                labels["cause"] = each.cause
            yield Observation(each.value, labels)

    return observe
