"""Addresses, their parameters, and what is told of wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.view.answers.addresses import (
    ask,
    error_answer,
    plain,
    status_of,
)
from gristmill.pipelines.view.answers.opened_datasets import Opened


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("api/none", "no answer at this address"),
        ("overview", "no answer at this address"),
        ("api/record", "record is missing"),
        ("api/record?record=x", "record is not a whole number"),
        ("api/record?record=1&more=2", "unknown parameter"),
        ("api/record?record=1&of=web", "there is no such dataset"),
        ("api/overview?split=test", "no such split"),
        ("api/record?record=-1", "record is not a whole number"),
        ("api/record?record=1_0", "record is not a whole number"),
        ("api/record?record=%2B1", "record is not a whole number"),
        ("api/record?record=%201", "record is not a whole number"),
        (f"api/shard?shard={1 << 63}", "shard is not a whole number"),
        (f"api/quality?epoch={'9' * 5000}", "epoch is not a whole number"),
        (f"api/record?record={(1 << 63) - 1}", "there is no such record"),
        ("api/shard?shard=99", "there is no such shard"),
        (f"api/step?step={(1 << 63) - 1}", "there is no such step"),
        ("api/step?step=0&first_row=8", "there is no such row"),
        ("api/quality?epoch=999999999999999999", "there is no such epoch"),
    ],
)
def test_a_wrong_address_is_told(opened, address: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        ask(opened, address)
    assert caught.value.cure
    told = error_answer(caught.value)["error"]
    assert (told["what"], told["cure"]) == (caught.value.what, caught.value.cure)
    assert status_of(caught.value) == (404 if "no answer" in message else 400)


def test_only_some_answers_are_kept(opened) -> None:
    mine = Opened(opened.datasets)
    made = [mine.kept(key % 100, lambda key=key: key) for key in range(200)]
    # The last 64 of the first round were dropped before they were asked for again.
    assert made == list(range(200))
    assert mine.kept(199, lambda: "again") == "again"
    assert mine.kept(99, lambda: "again") == 199


def test_javascript_loses_nothing() -> None:
    value = {"a": [1 << 53, -(1 << 60), np.float32("inf"), b"x" == 1], 3: None}
    assert plain(value) == {"a": [1 << 53, str(-(1 << 60)), "inf", False], "3": None}
