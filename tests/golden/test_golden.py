"""Every case still has the result that was kept."""

import pytest

from tests.golden.cases import GROUPS, all_cases, kept


@pytest.mark.parametrize("case", all_cases(), ids=lambda c: f"{c.group}.{c.name}")
def test_the_result_is_the_kept_one(case, tmp_path):
    results = kept(case.group)
    assert case.name in results, f"run: python -m tests.golden {case.name}"
    assert case.run(tmp_path) == results[case.name]


def test_no_kept_result_is_without_a_case():
    results = {(group, name) for group in GROUPS for name in kept(group)}
    assert results == {(case.group, case.name) for case in all_cases()}
