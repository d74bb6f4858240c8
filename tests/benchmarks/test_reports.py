"""The reports say what was measured: they are made of the runs that are kept."""

from __future__ import annotations

import pytest

from benchmarks import reports


@pytest.mark.parametrize(
    ("name", "text"), [*reports.render_all()], ids=lambda value: value[:20]
)
def test_reports_are_those_of_the_runs(name: str, text: str) -> None:
    kept = (reports.FOLDER / name).read_text(encoding="utf-8")
    assert kept == text, "run `python -m benchmarks.reports`"


def test_parts_of_pages_are_those_of_the_runs() -> None:
    for path, text in reports.list_parts():
        kept = path.read_text(encoding="utf-8")
        assert kept == text, "run `python -m benchmarks.reports`"
