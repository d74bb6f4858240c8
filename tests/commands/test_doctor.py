"""`gristmill doctor`: a line for each check, a cure where one fails, an exit code."""

import fcntl
import json
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from gristmill.pipelines.commands.get_started import examine
from tests.commands.conftest import run
from tests.servers.gcs_server import GcsServer
from tests.support.datasets import convert


def findings(place="", code=0):
    said = run(f"doctor {place} --json", code=code).stdout
    return {one["check"]: one for one in json.loads(said)["findings"]}


def test_a_machine_and_a_dataset(tmp_path, monkeypatch):
    dataset = convert(tmp_path, [[b"a record"] * 30])
    found = findings(dataset)
    assert [*found] == ["versions", "compiled", "memory", "disk", "locks"]
    assert "numpy" in found["versions"]["seen"]
    assert found["locks"]["level"] == "ok"
    assert len(run(f"doctor {dataset}").stdout.splitlines()) <= 25
    run("doctor gs:/b/c4", code=2)
    # A file system without locks.
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
    found = findings(dataset)["locks"]
    assert found["level"] == "warning"
    assert "two writers at once" in found["seen"]


@pytest.mark.usefixtures("without_compiled_part")
def test_what_is_slow_or_hangs(monkeypatch):
    full = SimpleNamespace(f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    found = findings()
    for name in ("compiled", "memory", "disk"):
        assert found[name]["level"] == "warning", name
        assert found[name]["cure"], name
    monkeypatch.setitem(sys.modules, "_brotli", None)  # As if it were not installed.
    assert "brotli" in findings()["compiled"]["cure"]
    ended = threading.Event()
    monkeypatch.setattr(os, "statvfs", lambda path: ended.wait() and full)
    seen = {one.check: one.seen for one in examine(None, seconds=0.2)}
    assert seen["disk"] == "no answer in time"
    ended.set()


def test_a_bucket(monkeypatch):
    with GcsServer("data") as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        storage.objects.places["data"] = {"location": "US-CENTRAL1"}
        found = findings("gs://data/c4")["bucket"]
        assert found["seen"] == "gs://data is in US-CENTRAL1; this account may read"
        storage.objects.granted = {"data": {"storage.objects.list"}}
        found = findings("gs://data/c4", code=1)["bucket"]
        assert found["seen"].endswith("storage.objects.get")
        assert "grant roles/storage.objectViewer" in found["cure"]
        found = findings("gs://other/c4", code=1)["bucket"]
        assert "does not exist" in found["seen"]
