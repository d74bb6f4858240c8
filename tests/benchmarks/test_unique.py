"""The benchmark of exact duplicates: all are found, and speeds are right."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import unique
from benchmarks.contest import describe_environment


def run(contestant: str, round_number: int, seconds: float) -> dict[str, object]:
    return {
        "contestant": contestant,
        "round": round_number,
        "text_bytes": 10_000_000,
        "records": 5000,
        "removed": 1000,
        "cpu_seconds": seconds,
        "wall_seconds": seconds,
        "peak_tree_bytes": 10**8,
    }


def test_speeds_are_those_of_the_runs() -> None:
    runs = [run("text-parquet", 1, 1), run("text-parquet", 2, 2)]
    runs += [run("datatrove", number + 1, 6) for number in range(2)]
    memory = [{"records": 10**8, "cpu_seconds": 9, "peak_bytes": 3 * 10**8}]
    environment = describe_environment(("numpy",))
    results = {"runs": runs, "environment": environment, "memory": memory}
    text = unique.render(results)
    assert "| text, Parquet | 7.5 (5.0..10.0) | 100 |" in text
    assert "4.5 (3.0..6.0) the text per CPU second of datatrove" in text
    assert "100,000,000 made-up digests" in text


@pytest.mark.soak
def test_every_contestant_runs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "runs.json"
    options = ["--bytes", "200KB", "--rounds", "1", "--memory-records", "2000000"]
    unique.main([*options, "--json", str(path)])
    results = json.loads(path.read_text())
    assert len({run["removed"] for run in results["runs"]}) == 1
    assert {run["contestant"] for run in results["runs"]} == (
        unique.LABELS.keys() - {"datatrove"}
    )
