"""A job's reads and writes as Beam's lineage, which Dataflow shows in Dataplex.

A path is reported as it is given, and a pattern by the directory in which it begins to
match: so the report of a job does not grow with its files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from apache_beam.metrics.metric import Lineage

from gristmill.dataset.storage.paths import has_magic


def report_sources(paths: Iterable[str]) -> None:
    """Reports paths or patterns that are read. For code that a worker runs."""
    for path in paths:
        _report(Lineage.sources(), path)


def report_sink(path: str) -> None:
    """Reports a dataset that is written. For code that a worker runs."""
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
    """Returns the directory in which a pattern begins to match, or a path as it is.

    >>> _without_magic("gs://b/raw/*/part-*"), _without_magic("a"), _without_magic("*")
    ('gs://b/raw', 'a', '.')
    """
    parts = path.split("/")
    for number, part in enumerate(parts):
        if has_magic(part):
            return "/".join(parts[:number]) or ("/" if path.startswith("/") else ".")
    return path
