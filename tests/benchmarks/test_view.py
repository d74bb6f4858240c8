"""The benchmark of the page: it asks for every answer, of datasets that it makes."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import reports, view


@pytest.mark.slow
def test_every_answer_is_asked_for(tmp_path: pathlib.Path, capsys) -> None:
    path = tmp_path / "view.json"
    arguments = ["--quick", "--shards", "9", "--json", str(path)]
    view.main([*arguments, "--work-dir", str(tmp_path)])
    found = json.loads(path.read_text())
    assert found["shards"] == 9
    assert {run["contestant"] for run in found["runs"]} == {*view.KINDS}
    for run in found["runs"]:
        assert run["milliseconds"].keys() == run["bytes"].keys()
        # A record, a row of tokens: no error has so many bytes.
        assert run["bytes"]["256 others, each read"] > 20_000
        assert run["bytes"]["another record"] > 500
    assert "| 256 rows of a step |" in capsys.readouterr().out


def test_medians_and_ranges_are_told() -> None:
    numbers = {"first_seconds": 1.0, "first_cpu_seconds": 2.0, "resident_bytes": 3e6}
    asked = {"milliseconds": {"lineage": 4.0}, "bytes": {"lineage": 5_000}, "load": 6}
    runs = [
        {"contestant": kind, **numbers, **asked, "first_seconds": seconds}
        for kind in view.KINDS
        for seconds in (1.0, 3.0, 2.5)
    ]
    environment = {"date": "2026-01-02", "cpu_count": 2, "cpu": "c", "python": "3"}
    about = {"environment": {**environment, "packages": {}}, "shards": 8, "rounds": 3}
    text = view.render({**about, "nice": 0, "runs": runs})
    assert "| wall time, s | 2.50 (1.00..3.00) | 2.50 (1.00..3.00) |" in text
    assert "| lineage | 4.0 | 4.0 | 5 |" in text


def test_the_report_holds_the_bars() -> None:
    results = json.loads((reports.ROOT / reports.RESULTS / "view.json").read_text())
    assert results["shards"] >= 1_000_000
    assert len(results["runs"]) >= 5 * len(view.KINDS)
    for run in results["runs"]:
        assert run["first_seconds"] < 3
        assert max(run["milliseconds"].values()) < 300
