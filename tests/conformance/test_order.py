"""The order of records is that of `order.json`, in every release."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance import make_order, plain_order

DIGEST = "fa59f9dd6c753ecd56c9a343c1e57e41c718a976fc08b4e01c88b76cdb498ded"


def table() -> list[dict[str, Any]]:
    """Returns the configurations with their rows, as they always were."""
    found = json.loads(make_order.PATH.read_text(encoding="utf-8"))
    # Neither the file nor the code may change: runs would not resume where they were.
    assert make_order.digest_of(found["configurations"]) == found["sha256"] == DIGEST
    return list(found["configurations"])


def test_an_implementation_without_source_gives_the_same() -> None:
    for number, each in enumerate(table()[::5]):
        assert plain_order.rows_of(each) == each["rows"], f"configuration {5 * number}"


@pytest.mark.slow
def test_no_release_changes_an_order() -> None:
    assert sum(len(each["steps"]) for each in table()) == 10_000
    for number, each in enumerate(table()):
        assert make_order.rows_of(each) == each["rows"], f"configuration {number}"


def test_all_kinds_are_among_the_configurations() -> None:
    configurations = table()
    assert {each["shuffle"]["kind"] for each in configurations} == {
        *("none", "global", "block")
    }
    assert {each["seed"] for each in configurations} == {*make_order.SEEDS}
    assert {len(each["datasets"]) for each in configurations} == {1, 2, 3, 4, 5}
    assert {each["batch_size"] for each in configurations} == {*make_order.BATCH_SIZES}
    sizes = [each["datasets"][0][1] for each in configurations]
    assert min(sizes) < 5
    assert max(sizes) > 2**45
