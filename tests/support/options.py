"""Options of pipelines, as tests give them."""

from __future__ import annotations

REQUIRED = {
    "append": {"output": "gs://a/c", "input": ("gs://a/b",)},
    "convert": {"input": ("gs://a/b",), "output": "gs://a/c"},
    "index": {"files": ("gs://a/b*",)},
    "pack": {"input": ("gs://a/b",), "output": "gs://a/c"},
    "verify": {"dataset": "gs://a/b"},
}
