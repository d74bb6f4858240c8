"""Findings, as people read them."""

from __future__ import annotations

import pickle
import random

import pytest

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.base.findings import (
    Finding,
    Findings,
    FirstOf,
    finding_of,
    wrong_size,
)
from tests.support.watched import calls_of


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


def test_the_first_do_not_depend_on_the_order_or_the_parts():
    items = [f"{number:04d}" for number in range(1000)]
    for seed in range(20):
        shuffled = random.Random(seed).sample(items, len(items))
        cut = seed * 50
        whole = FirstOf[str](10, str)
        for part in (shuffled[:cut], shuffled[cut:]):
            collected = FirstOf[str](10, str).add(part, more=3)
            whole.merge(pickle.loads(pickle.dumps(collected)))
        assert whole.first == tuple(items[:10])
        assert (whole.more, len(whole)) == (996, 1006)


def test_the_same_item_is_counted_once():
    found = FirstOf[str](10, str).add("abca").merge(FirstOf[str](10, str).add("ab"))
    assert (found.first, found.more, len(found)) == (("a", "b", "c"), 0, 3)
    assert not FirstOf[str](10, str)


@pytest.mark.slow
def test_findings_are_kept_by_file_and_sorted_rarely(monkeypatch):
    """Sorted in every sum, as many findings as shards would take hours."""
    sorts = calls_of(monkeypatch, FirstOf, "_drop")
    findings = Findings()
    for number in reversed(range(40_000)):
        part = Findings().add([Finding(f"{number:06d}", "shard is missing")])
        findings.merge(part)
    assert len(sorts) < 20
    assert len(findings) == 40_000
    assert [finding.path for finding in findings.first[:2]] == ["000000", "000001"]
    assert len(pickle.dumps(findings)) < 2 << 20
