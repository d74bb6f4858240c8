"""The benchmark of MosaicML Streaming: what it runs of gristmill, and what it says."""

from __future__ import annotations

import pathlib
import sys

import pytest

from benchmarks import figures, streaming
from benchmarks.comparisons import PEERS
from benchmarks.contest import describe_environment
from tests.benchmarks.test_plots import check_texts


def _results() -> dict[str, object]:
    runs = [
        {
            "contestant": key,
            "round": number,
            "records": 1000 * (place + 1),
            "bytes": 2_000_000 * (place + 1),
            "cpu_seconds": 0.5 * number,
            "wall_seconds": 0.25,
            **({"stored_bytes": 500_000} if key in streaming.WRITERS else {}),
        }
        for number in (1, 2)
        for place, key in enumerate(streaming.LABELS)
    ]
    return {
        "environment": describe_environment(("numpy",)),
        "settings": {"rounds": 2, "seconds": 1},
        "inputs": {"records": 1000, "bytes": 2_000_000},
        "runs": runs,
    }


def test_the_report_has_every_contestant() -> None:
    results = _results()
    lines = streaming.render(results).splitlines()
    for label in (
        "`MDSWriter`, zstd:3, a hash of each shard",
        "`StreamingDataset(shuffle=True)`, on one processor",
    ):
        assert f"| {label} | 12.0 (8.0..16.0) | 32.0 |" in lines
    assert "MDSWriter`, not compressed 0.25" in lines[-1]
    canvas = figures.draw("streaming", results)
    assert canvas is not None
    check_texts(canvas.svg("title"))
    for key in ("mds_write", "mds_read"):
        assert PEERS[key].times(results, "cpu_seconds").low > 0


@pytest.mark.slow
def test_gristmill_writes_and_feeds_what_is_compared(tmp_path: pathlib.Path) -> None:
    class Alone(streaming.Benchmark):
        def _write(self, key: str, output: pathlib.Path) -> dict[str, float]:
            return {} if key.startswith("mds") else super()._write(key, output)

    benchmark = Alone(tmp_path, pathlib.Path(sys.executable), seconds=0.05)
    benchmark.prepare(1_500_000)
    run = benchmark.measure("writer")
    assert run["records"] == benchmark.records
    assert 0 < run["stored_bytes"] < 1_500_000
    assert benchmark.measure("feed_plain")["records"] > 0
