"""Every case still has the result that was kept."""

import json

import pytest

from tests.golden.cases import RESULTS, all_cases


@pytest.mark.parametrize("case", all_cases(), ids=lambda c: f"{c.group}.{c.name}")
def test_the_result_is_the_kept_one(case, tmp_path):
    kept = case.kept()
    assert kept is not None, f"run: python -m tests.golden {case.name}"
    assert json.loads(json.dumps(case.run(tmp_path))) == kept


def test_no_kept_result_is_without_a_case():
    kept = {
        f"{file.stem}.{name}"
        for file in RESULTS.glob("*.json")
        for name in json.loads(file.read_text(encoding="utf-8"))
    }
    assert kept == {f"{case.group}.{case.name}" for case in all_cases()}
