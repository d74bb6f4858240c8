"""The benchmark of packing measures what it says, and prints both tables."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from benchmarks import packing


@pytest.mark.slow
def test_grain_packs_the_same_tokens() -> None:
    lengths = packing.lognormal(60, mean=458, sigma=1.03, seed=0)
    found = packing.grain_packing(
        lengths, 2048, packer="FirstFitPackIterDataset", open_rows=4
    )
    assert found.tokens == lengths.sum()
    best = packing.fill(lengths, 2048, "best-fit")
    assert best.padding <= 1 - found.tokens / (found.rows * 2048)


def test_fill() -> None:
    found = packing.fill(np.array([10, 10, 25], np.uint32), 20, "none")
    assert found == pytest.approx((1 / 3, 0, 1 / 9))
    found = packing.fill(np.array([10, 10, 25], np.uint32), 20, "best-fit")
    assert found == pytest.approx((0.25, 1 / 3, 0))


def test_command_line(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("100\n3000\n")
    packing.main(["--documents", "200", "--no-grain", "--lengths", str(lengths)])
    out = capsys.readouterr().out
    assert out.count("| lengths.txt |") == 6
    assert out.count("| none |") == 6
    assert "| plan_rows |" in out
    assert "Grain" not in out.replace("without Grain's packers", "")
