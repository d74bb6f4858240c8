"""The metrics and the lineage of jobs on Beam.

A runner adds up the counts of successful attempts; Dataflow shows the sums on the page
of the job, exports them to Cloud Monitoring, and shows the lineage in Dataplex. A
pattern is reported as the directory in which it begins to match, so that the report
does not grow with the number of files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from apache_beam.metrics.metric import Lineage

from gristmill.dataset.storage.paths import has_magic

if TYPE_CHECKING:
    from apache_beam.metrics.metricbase import Counter

NAMESPACE = "gristmill"

COUNTERS = {
    "planned-shards": "Shards to make, index or verify, known when the plan is made: "
    "in the end as many as `made-shards` and `resumed-shards`, or `verified-shards`",
    "made-shards": "Shards that were made or indexed",
    "resumed-shards": "Shards that were there already: an earlier run had made them, "
    "or an attempt that the runner repeated. No other counter has them",
    "records": "Records in the shards that were made",
    "raw-bytes": "Bytes of these records",
    "skipped-regions": "Damaged regions that were left out",
    "dropped-records": "Records that a function dropped",
    "added-records": "Records that a function returned beyond one for each",
    "changed-records": "Records that a function changed",
    "documents": "Documents that were packed",
    "tokens": "Tokens that were packed",
    "padding-tokens": "Places of packed rows that hold padding",
    "truncated-documents": "Documents whose end was left out",
    "truncated-tokens": "Tokens that were left out",
    "verified-shards": "Shards that were verified",
    "verified-records": "Records that were compared",
    "findings": "Faults that a verification found",
    "records-read": "Records that a transform for reading returned",
    "raw-bytes-read": "Bytes of these records",
}
DISTRIBUTIONS = {
    "shard-milliseconds": "Time to make, index or verify a shard",
    "shard-bytes": "Size of such a shard, as it is stored",
}


def counter(name: str) -> Counter:
    """Returns a counter of `COUNTERS`, for code that runs on a worker."""
    from apache_beam.metrics import Metrics

    if name not in COUNTERS:
        raise KeyError(name)
    return Metrics.counter(NAMESPACE, name)


def count(values: Mapping[str, int], *, seconds: float = 0.0) -> None:
    """Adds to counters and distributions, by name.

    Args:
        values: The numbers to add.
        seconds: The time for the shard whose size is among them.
    """
    from apache_beam.metrics import Metrics

    for name, value in values.items():
        if name in COUNTERS:
            counter(name).inc(value)
        else:
            Metrics.distribution(NAMESPACE, name).update(value)
            time = Metrics.distribution(NAMESPACE, "shard-milliseconds")
            time.update(round(seconds * 1000))


def report_sources(paths: Iterable[str]) -> None:
    """Reports paths or patterns that are read; call it on a worker."""
    for path in paths:
        _report(Lineage.sources(), path)


def report_sink(path: str) -> None:
    """Reports a dataset that is written; call it on a worker."""
    _report(Lineage.sinks(), path)


def _report(lineage: Lineage, path: str) -> None:
    path = _without_magic(path).rstrip("/") or "/"
    if path.startswith("gs://"):
        bucket, _, name = path.removeprefix("gs://").partition("/")
        names = (bucket, name) if name else (bucket,)
        lineage.add("gcs", *names, last_segment_sep="/" if name else None)
    else:
        path = os.path.abspath(path)
        lineage.add("filesystem", "localhost", path, last_segment_sep="/")


def _without_magic(path: str) -> str:
    """Returns the directory in which a pattern begins to match, or the path itself.

    >>> _without_magic("gs://b/raw/*/part-*"), _without_magic("a"), _without_magic("*")
    ('gs://b/raw', 'a', '.')
    """
    parts = path.split("/")
    for number, part in enumerate(parts):
        if has_magic(part):
            return "/".join(parts[:number]) or ("/" if path.startswith("/") else ".")
    return path
