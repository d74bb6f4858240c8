"""The benchmark of plans: it runs, and its table compares with the median."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from benchmarks import plan


def run_of(size: float, cpu: float, made: float, taken: float) -> dict[str, Any]:
    return {
        "plan": {
            "inputs": {"bytes": 10**8},
            "file_bytes": {"value": size, "error": size / 100},
            "cpu_seconds_per_worker": cpu,
            "wall_seconds": 3.0,
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


@pytest.mark.soak
def test_it_runs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in plan.DATA:
        path = tmp_path / "runs.json"
        argv = ["--bytes", "2MB", "--rounds", "1", "--only", name, "--json", str(path)]
        plan.main([*argv, "--work-dir", str(tmp_path)])
        assert name in capsys.readouterr().out
        assert len(json.loads(path.read_text())["runs"][name]) == 1
