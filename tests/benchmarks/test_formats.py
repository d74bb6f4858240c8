"""The benchmark of other formats: all write every row, and ratios are right."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import formats
from benchmarks.contest import describe_environment


def run(contestant: str, round_number: int, seconds: float) -> dict[str, object]:
    return {
        "contestant": contestant,
        "round": round_number,
        "bytes": 10_000_000,
        "records": 5,
        "cpu_seconds": 2 * seconds,
        "wall_seconds": seconds,
        "peak_tree_bytes": 10**8,
    }


def test_ratios_are_those_of_each_round() -> None:
    runs = [run("jsonl", 1, 1), run("jsonl", 2, 4), run("jsonl", 3, 2)]
    runs += [run("jsonl_loop", number + 1, 6) for number in range(3)]
    runs.append(run("parquet", 0, 1))
    results = {"runs": runs, "environment": describe_environment(("numpy",))}
    lines = formats.render(results).splitlines()
    assert "| gristmill convert, JSONL | 4.0 | 2.5 | 2.0 | 100 |" in lines
    ratio = "3.00 (1.50..6.00)"
    assert f"| JSONL over the plain loop | {ratio} | {ratio} |" in lines
    assert lines[-1] == "| gristmill convert, Parquet | 10 | 100 |"
    assert not any("Google" in line for line in lines)


@pytest.mark.soak
def test_every_contestant_runs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "runs.json"
    formats.main(["--bytes", "200KB", "--rounds", "1", "--json", str(path)])
    runs = json.loads(path.read_text())["runs"]
    assert {run["contestant"] for run in runs} == {
        *("tfrecord", "jsonl", "parquet", "jsonl_loop", "parquet_loop")
    }
