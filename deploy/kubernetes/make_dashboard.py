"""Makes dashboard.json, for Grafana, of queries.

python deploy/kubernetes/make_dashboard.py
"""

from __future__ import annotations

import pathlib
import string

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.builders.common import StackingConfig, VizLegendOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

PATH = pathlib.Path(__file__).parent / "dashboard.json"
_FEED = 'feed=~"$feed",job=~"$job"'
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def _rate(metric: str) -> str:
    return f"rate(gristmill_feed_{metric}_total{{{_FEED}}}[$__rate_interval])"


def _a_batch(*parts: str) -> str:
    """The query of seconds a batch, over all hosts: the first part less the others."""
    first, *rest = (f"sum({_rate(part)})" for part in parts)
    return f"({' - '.join([first, *rest])}) / sum({_rate('batches')})"


_WAIT, _BUSY = _rate("wait_seconds"), _rate("busy_seconds")
_SHARE = f"{_WAIT} / ({_WAIT} + {_BUSY})"


def _graph(
    title: str, text: str, unit: str, *queries: tuple[str, str]
) -> timeseries.Panel:
    """A panel with queries, each with what its lines are called."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(_SOURCE)
        .unit(unit)
        .min(0)
        .span(12)
        .height(8)
        .legend(VizLegendOptions().display_mode(LegendDisplayMode.LIST))
    )
    for letter, (expression, legend) in zip(
        string.ascii_uppercase, queries, strict=False
    ):
        query = prometheus.Dataquery().expr(expression).legend_format(legend)
        panel.with_target(query.ref_id(letter))
    return panel


def make() -> str:
    """Returns the dashboard as JSON."""
    board = (
        dashboard.Dashboard("gristmill: what trainers wait for")
        .uid("gristmill-feeds")
        .tags(["gristmill"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    for name in ("job", "feed"):
        board.with_variable(
            dashboard.QueryVariable(name)
            .datasource(_SOURCE)
            .query(f"label_values(gristmill_feed_batches_total, {name})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .multi(True)
        )
    board.with_panel(
        _graph(
            "Waiting for batches",
            "Share of each trainer's time. A slow host waits, and the others do not.",
            "percentunit",
            (_SHARE, "{{pod}} {{feed}}"),
            (f"quantile(0.5, {_SHARE})", "host in the middle"),
        ).max(1)
    )
    board.with_panel(
        _graph(
            "Causes",
            "How many hosts waited for what in the last minute.",
            "short",
            (f"sum by (cause) (gristmill_feed_waits_for{{{_FEED}}})", "{{cause}}"),
        ).stacking(StackingConfig().mode(StackingMode.NORMAL))
    )
    board.with_panel(
        _graph(
            "What a batch takes",
            "In all threads or workers of a host, on average over hosts. In threads, "
            "waiting for storage includes waiting for Python's lock.",
            "s",
            (
                _a_batch("read_seconds", "read_cpu_seconds", "read_queued_seconds"),
                "waiting for storage",
            ),
            (_a_batch("read_cpu_seconds"), "decompression and checks"),
            (_a_batch("decode_seconds", "decode_queued_seconds"), "decode"),
            (
                f"{_a_batch('read_queued_seconds')} + "
                f"{_a_batch('decode_queued_seconds')}",
                "waiting for a processor",
            ),
            (_a_batch("transfer_seconds"), "transfer"),
        ).stacking(StackingConfig().mode(StackingMode.NORMAL))
    )
    board.with_panel(
        _graph(
            "A step, and its batch",
            "More workers than the number of batches that are made in a step are idle.",
            "s",
            (_a_batch("busy_seconds"), "step"),
            (_a_batch("wait_seconds"), "waiting for its batch"),
        )
    )
    board.with_panel(
        _graph(
            "Records",
            "Given to all trainers.",
            "rps",
            (f"sum by (feed) ({_rate('records')})", "{{feed}}"),
        )
    )
    board.with_panel(
        _graph(
            "Bytes of records",
            "Given to all trainers, before decode.",
            "Bps",
            (f"sum by (feed) ({_rate('record_bytes')})", "{{feed}}"),
        )
    )
    board.with_panel(
        _graph(
            "Batches ready",
            "Of those that can be; none is ready where the trainer waits.",
            "short",
            (f"gristmill_feed_ready_batches{{{_FEED}}}", "{{pod}} {{feed}}"),
            (f"max(gristmill_feed_prefetch{{{_FEED}}})", "most"),
        )
    )
    board.with_panel(
        _graph(
            "Waiting now",
            "How long each trainer has waited for the batch that it asked for.",
            "s",
            (f"gristmill_feed_current_wait_seconds{{{_FEED}}}", "{{pod}} {{feed}}"),
        )
    )
    board.with_panel(
        _graph(
            "Records from local copies",
            "Share of the records of shards in object storage, with a cache of shards.",
            "percentunit",
            (
                f"sum({_rate('cache_hits')}) / (sum({_rate('cache_hits')}) + "
                f"sum({_rate('cache_misses')}))",
                "from copies",
            ),
        ).max(1)
    )
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


if __name__ == "__main__":
    PATH.write_text(make(), encoding="utf-8")
