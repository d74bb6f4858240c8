"""The benchmark of packed rows feeds all contestants, and its ratios are right."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import feed_packed
from benchmarks.contest import describe_environment


def run(contestant: str, round_number: int, tokens: float) -> dict[str, object]:
    return {
        "contestant": contestant,
        "round": round_number,
        "rows": 10,
        "tokens": tokens,
        "cpu_seconds": 2.0,
        "wall_seconds": 1.0,
    }


def test_ratios_are_those_of_each_round() -> None:
    runs = [run("bare", number, 4e6 * number) for number in (1, 2, 3)]
    runs += [run("packed", 1, 2e6), run("packed", 2, 7e6), run("packed", 3, 6e6)]
    inputs = {"documents": 9, "rows": 10, "tokens": 10 * 2048 - 20}
    environment = describe_environment(("numpy",))
    results = {"runs": runs, "inputs": inputs, "environment": environment}
    lines = feed_packed.render(results).splitlines()
    assert "in 10 rows of 2,048, 0.10% padding. Medians of 3 rounds" in lines[4]
    assert (
        "| packed rows, six arrays | 3.00 (1.00..3.50) | 6.00 (2.00..7.00) |" in lines
    )
    assert "| packed rows over bare rows | 0.50 (0.50..0.88) |" in lines
    assert not any("on the fly" in line for line in lines)


@pytest.mark.soak
def test_every_contestant_runs(tmp_path: pathlib.Path) -> None:
    out, table = tmp_path / "out.json", tmp_path / "out.md"
    options = ["--quick", "--json", str(out), "--markdown", str(table)]
    assert feed_packed.main([*options, "--work-dir", str(tmp_path)]) == 0
    results = json.loads(out.read_text())
    assert [run["contestant"] for run in results["runs"]] == [*feed_packed.LABELS]
    assert all(run["tokens"] > 0 for run in results["runs"])
    assert table.read_text().count("|") > 20
