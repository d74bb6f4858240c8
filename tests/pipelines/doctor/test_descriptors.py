"""Limits of open files, lowered for real in another process."""

from __future__ import annotations

import pathlib
import sys

import gristmill.loader.feed.workers as feed_workers
import gristmill.loader.reading.shard_list as shard_list
from gristmill.pipelines.doctor import descriptors
from tests.support.datasets import convert
from tests.support.namespaces import run_json

LOWERED = """
import dataclasses, json, os, resource, sys
from gristmill.pipelines.doctor.descriptors import look_at_descriptors
from gristmill.pipelines.doctor.place import Place

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
place = Place(sys.argv[1])
place.manifest()
found = {}
for name, soft, hard, where in (
    ("fine", 4096, 4096, place),
    ("bucket", 512, 4096, None),
    ("local", 512, 4096, place),
    ("shards", 250, 250, place),
    ("feed", 80, 80, place),
):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    findings = look_at_descriptors(where)
    found[name] = [dataclasses.asdict(finding) for finding in findings]
print(json.dumps(found))
"""


def test_limits_are_compared_with_what_is_needed(tmp_path: pathlib.Path) -> None:
    dataset = convert(tmp_path, [[b"a"], [b"b"]])
    found = run_json([sys.executable, "-c", LOWERED, dataset])
    for name in ("fine", "local"):
        (fine,) = found[name]
        assert fine["level"] == "ok", fine
        assert "4,096" in fine["seen"]
    (bucket,) = found["bucket"]
    assert bucket["level"] == "warning"
    assert "at most 512, or 4,096" in bucket["seen"]
    assert "530 connections" in bucket["seen"]
    assert "ulimit -n 65536" in bucket["cure"]
    (shards,) = found["shards"]
    assert (shards["level"], "2 shards open" in shards["seen"]) == ("warning", True)
    assert "takes 260" in shards["seen"]
    feed, _ = found["feed"]
    assert feed["level"] == "error"
    assert "a feed with one worker needs 84" in feed["seen"]


def test_the_figures_are_those_of_the_loader() -> None:
    assert descriptors.SHARED_FILES == feed_workers._SHARED_FILES
    assert descriptors.WORKER_FILES == feed_workers._WORKER_FILES
    assert descriptors.SPARE_FILES == shard_list._SPARE_FILES
