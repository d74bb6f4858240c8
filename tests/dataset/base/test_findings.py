"""Findings, as people read them."""

from __future__ import annotations

import pytest

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.base.findings import Finding, finding_of, wrong_size


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (Finding("a", "is missing"), "a: is missing"),
        (Finding("a", "is odd", got="3"), "a: is odd (got 3)"),
        (
            wrong_size("a", 1000, 7),
            "a: shard has the wrong size (expected 1,000 bytes, got 7)",
        ),
    ],
)
def test_text(finding: Finding, text: str) -> None:
    assert str(finding) == text


def test_errors_become_findings() -> None:
    error = InvalidDatasetError(
        "is damaged", where="/data/a", expected=1, got="expected: 2\n3", cure="none"
    )
    assert finding_of("a", error) == Finding("a", "is damaged", "1", "expected: 2\n3")
