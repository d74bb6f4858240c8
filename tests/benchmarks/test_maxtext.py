"""The benchmark of MaxText's input compares rounds, and counts living workers."""

from __future__ import annotations

import subprocess
import sys

from benchmarks import maxtext
from benchmarks.contest import describe_environment


def run(contestant: str, round_number: int, tokens: float) -> dict[str, object]:
    return {
        "contestant": contestant,
        "round": round_number,
        "tokens": tokens,
        "cpu_seconds": 2.0,
        "wall_seconds": 1.0,
    }


def test_ratios_are_those_of_each_round() -> None:
    runs = [run("own", number, 2e6 * number) for number in (1, 2, 3)]
    runs += [run("packed", 1, 4e8), run("packed", 2, 6e8), run("packed", 3, 6e8)]
    results = {
        "runs": runs,
        "inputs": {"documents": 9, "rows": 10},
        "settings": {"rounds": 3, "rows": 48},
        "environment": describe_environment(("numpy",)),
    }
    lines = maxtext.render(results).splitlines()
    assert "Medians of 3 rounds (lowest..highest)." in lines[4]
    assert "| MaxText's own pipeline | 2.00 (1.00..3.00) | 4.00 (2.00..6.00) |" in lines
    assert "| packed rows over MaxText's own | 150.00 (100.00..200.00) |" in lines
    assert not any("1 worker" in line for line in lines)


def test_cpu_time_counts_a_living_child() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint()\ninput()"
    before = maxtext.tree_cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert maxtext.tree_cpu_seconds() - before >= 0.25
        child.communicate(b"\n")
