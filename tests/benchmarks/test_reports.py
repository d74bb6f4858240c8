"""The reports say what was measured: they are made of the runs that are kept."""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil

import pytest

from benchmarks import maxtext, reports
from benchmarks.contest import write_reports


@pytest.mark.parametrize(
    ("name", "text"), [*reports.render_all()], ids=lambda value: value[:20]
)
def test_reports_are_those_of_the_runs(name: str, text: str) -> None:
    kept = (reports.ROOT / reports.PAGES / name).read_text(encoding="utf-8")
    assert kept == text, "run `python -m benchmarks.reports`"


def test_parts_of_pages_are_those_of_the_runs() -> None:
    for path, text in reports.list_parts():
        kept = path.read_text(encoding="utf-8")
        assert kept == text, "run `python -m benchmarks.reports`"


def test_a_new_run_gets_into_the_pages_of_all(tmp_path: pathlib.Path) -> None:
    for folder in (reports.RESULTS, reports.PAGES):
        shutil.copytree(reports.ROOT / folder, tmp_path / folder)
    path, pages = tmp_path / reports.RESULTS / "maxtext.json", tmp_path / reports.PAGES
    results = json.loads(path.read_text())
    results["environment"]["date"] = "2030-01-02"
    args = argparse.Namespace(json=path, markdown=pages / "maxtext.md")
    write_reports(args, "maxtext", results, maxtext.render(results))
    assert "Measured on 2030-01-02;" in args.markdown.read_text()
    assert "| [2030-01-02](maxtext.md) |" in (pages / "peers.md").read_text()
    assert "with records. Measured on 2030-01-02." in (pages / "index.md").read_text()
    changed = {
        each.name
        for each in (*path.parent.iterdir(), *pages.iterdir())
        if each.read_bytes() != (reports.ROOT / each.relative_to(tmp_path)).read_bytes()
    }
    assert changed == {"maxtext.json", "maxtext.md", "peers.md", "index.md"}
