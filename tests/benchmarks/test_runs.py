"""Contests run from end to end, with little data."""

from __future__ import annotations

import importlib
import json
import pathlib

import pytest

from benchmarks import plan_scale
from benchmarks.resume import __main__ as resume
from benchmarks.resume.environments import QUICK

QUICK_RUNS = {
    "convert": "--bytes 600KB --small-bytes 100KB --contestants gristmill_1 bare",
    "load": "--text-bytes 300KB --binary-bytes 1MB --seconds 0.05"
    " --contestants gristmill_read official_read",
    "gcs": "",
    "gcs_convert": "--bytes 200KB --latency-ms 2",
    "formats": "--bytes 200KB --rounds 1",
    "reshard": "--bytes 300KB --rounds 1",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK_RUNS)
def test_a_contest_runs(name: str, tmp_path: pathlib.Path) -> None:
    program = importlib.import_module(f"benchmarks.{name}")
    path = tmp_path / "runs.json"
    arguments = ["--quick", *QUICK_RUNS[name].split(), "--json", str(path)]
    assert not program.main(arguments)
    assert json.loads(path.read_text())["runs"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["append", "index", "replace", "size", "verify"])
def test_plans_grow_as_they_should(path: str) -> None:
    found = plan_scale.measure(path, 500)
    assert found["element_bytes"] <= 300  # With the path of a temporary file.
    assert found["gathered_shard_bytes"] <= 100


# What loaders take of other data, they take without a look at it.
OUTCOMES = {
    "gristmill": {"stopped": "exact", "packing": "exact", "other": "refused"},
    "grain_map": {"stopped": "exact", "packing": "exact", "other": "accepted"},
    "tf_data": {"stopped": "exact", "packing": "not offered", "other": "accepted"},
    # It has no state: its numbers are those of two draws.
    "webdataset": {"stopped": "differs", "packing": "not offered"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(name, marks=pytest.mark.soak) if name != "gristmill" else name
        for name in QUICK
    ],
)
def test_loaders_resume_and_gristmill_is_exact(
    loader: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "resume.json"
    argv = ["--quick", "--work-dir", str(tmp_path), "--json", str(path)]
    assert resume.main([*argv, "--loaders", loader]) == 0
    found = json.loads(path.read_text())["loaders"][loader]
    outcomes = {case: one["outcome"] for case, one in found["cases"].items()}
    assert {**outcomes, **OUTCOMES[loader]} == outcomes
    assert "failed" not in outcomes.values()
