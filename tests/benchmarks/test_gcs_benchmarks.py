"""The benchmarks of conversion from and to a bucket run, and say what they found."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import faults, gcs_convert


@pytest.mark.slow
def test_conversion_beside_the_local_one(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--quick", "--bytes", "200KB", "--latency-ms", "2"]
    report, found = tmp_path / "report.md", tmp_path / "found.json"
    gcs_convert.main([*args, "--markdown", str(report), "--json", str(found)])
    assert report.read_text() in capsys.readouterr().out
    results = json.loads(found.read_text())
    (main,) = (
        run["requests"]
        for run in results["runs"]
        if run["kind"] == "main" and run["latency_ms"] == 2
    )
    # Two shards, their indexes, and four small files.
    assert main["insert"] == 2 * 2 + 4
    assert "| 1 | bucket, 2 ms |" in report.read_text()
    dollars = (
        1e6
        / results["records"]
        * (
            (main["insert"] + main["list"]) * 0.005
            + (main["media"] + main["stat"]) * 0.0004
        )
        / 1000
    )
    assert f"| {dollars:.4f} |" in report.read_text()


@pytest.mark.slow
def test_faults(tmp_path: pathlib.Path) -> None:
    document = tmp_path / "document.md"
    begin, end = "<!-- conversion: begin -->", "<!-- conversion: end -->"
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    args = ["--quick", "--bytes", "200KB", "--only", "(403)"]
    assert faults.main([*args, "--markdown", str(document)]) == 0
    text = document.read_text()
    assert text.startswith(f"before\n{begin}\n| what happens |")
    assert text.endswith(f"the same dataset |\n{end}\nafter\n")
    assert "| cannot write the object: 403 storage.objects.create denied |" in text
