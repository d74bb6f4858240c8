"""The benchmark of plans: it runs, and its table compares with the median."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from benchmarks import plan

ROOT = pathlib.Path(__file__).parents[2]


def run_of(size: float, cpu: float, made: float, taken: float) -> dict[str, Any]:
    return {
        "plan": {
            "inputs": {"bytes": 10**8},
            "file_bytes": {"value": size, "error": size / 100},
            "cpu_seconds_per_worker": cpu,
            "own_cpu": 3.0,
        },
        "made": {"file_bytes": made, "cpu_seconds_per_worker": taken},
    }


def test_table_compares_with_the_median_of_the_conversions() -> None:
    runs = [
        run_of(51e6, 1.1, 50e6, 1.0),
        run_of(49e6, 0.8, 50e6, 1.0),
        run_of(50e6, 1.0, 50e6, 9.0),
    ]
    row = plan.table_of({"runs": {"text": runs}}).splitlines()[2]
    assert row == (
        "| text | 100 | 50.0 | 50.0 | +2.0% | 1.0% | 1.00 | 1.00 | -20% to +10% | 3.0 |"
    )


def test_report_is_what_the_runs_say_and_holds_the_bars() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "plan.json").read_text())
    page = (ROOT / "docs" / "performance" / "plan.md").read_text(encoding="utf-8")
    assert page == plan.render(results), "run python -m benchmarks.plan"
    assert len(results["runs"]) >= 3
    for runs in results["runs"].values():
        assert len(runs) == 5
        made = sorted(run["made"]["file_bytes"] for run in runs)[2]
        taken = sorted(run["made"]["cpu_seconds_per_worker"] for run in runs)[2]
        for run in runs:
            said = run["plan"]
            assert said["file_bytes"]["value"] == pytest.approx(made, rel=0.03)
            assert said["cpu_seconds_per_worker"] == pytest.approx(taken, rel=0.3)
    assert results["listing"]["inputs"]["bytes"] >= 10**11
    assert results["listing"]["wall_seconds"] < 10


@pytest.mark.soak
def test_it_runs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in plan.DATA:
        path = tmp_path / "runs.json"
        argv = ["--bytes", "2MB", "--rounds", "1", "--only", name, "--json", str(path)]
        plan.main([*argv, "--work-dir", str(tmp_path)])
        assert name in capsys.readouterr().out
        assert len(json.loads(path.read_text())["runs"][name]) == 1
