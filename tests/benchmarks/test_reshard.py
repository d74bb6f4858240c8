"""The benchmark of resharding: it runs, and its ratios are those of each round."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import reshard


def test_ratios_are_those_of_each_round() -> None:
    def runs(*seconds: float) -> list[dict[str, float]]:
        return [
            {"wall_seconds": s, "cpu_seconds": 2 * s, "peak_tree_bytes": 1e8}
            for s in seconds
        ]

    found = {"TFRecord files": runs(1, 2, 4), "dataset": runs(2, 2, 5)}
    table = reshard.table_of(found, 10_000_000).splitlines()
    assert table[2] == "| TFRecord files | 5.0 | 1.00 | 2.5 | 1.00 | 100 |"
    assert "| 5.0 | 0.80 (0.50..1.00) |" in table[3]


@pytest.mark.soak
def test_it_runs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.json"
    argv = ["--bytes", "300KB", "--rounds", "1", "--json", str(path)]
    reshard.main([*argv, "--work-dir", str(tmp_path)])
    assert "its shards as files" in capsys.readouterr().out
    runs = json.loads(path.read_text())["runs"]
    assert len(runs) == 5
    assert all(len(each) == 1 for each in runs.values())
