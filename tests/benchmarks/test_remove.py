"""The benchmark of removal: its ratios are those of each round, and it runs."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import remove


def test_ratios_are_those_of_each_round() -> None:
    def runs(*seconds: float) -> list[dict[str, float]]:
        return [{"wall_seconds": s, "cpu_seconds": s} for s in seconds]

    found = {1: {"convert": runs(10, 20, 24), "remove": runs(1, 4, 3)}}
    table = remove.table_of(found).splitlines()
    assert table[2].startswith("| 1 | 20.00 (10.00..24.00) | 3.00 (1.00..4.00) |")
    assert "| 8.0 (5.0..10.0) | 8.0 (5.0..10.0) |" in table[2]


@pytest.mark.soak
def test_it_runs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.json"
    argv = ["--bytes", "300KB", "--rounds", "1", "--shards", "2", "--records", "5"]
    remove.main([*argv, "--json", str(path), "--work-dir", str(tmp_path)])
    assert "times the speed" in capsys.readouterr().out
    assert set(json.loads(path.read_text())["runs"]) == {"1", "16"}
