"""The test of resuming: what it counts, what it says, and that it runs."""

from __future__ import annotations

import copy
import json
import pathlib
import re

import numpy as np
import pytest

from benchmarks import reports
from benchmarks.resume import __main__ as resume
from benchmarks.resume import report
from benchmarks.resume.cases import CASES
from benchmarks.resume.compare import compare
from benchmarks.resume.environments import LOADERS, QUICK

_ADAPTERS = reports.ROOT / "benchmarks" / "resume" / "loaders"


def _steps(*steps: list[int]) -> list[np.ndarray]:
    return [np.array(step, np.int64) for step in steps]


@pytest.mark.parametrize(
    ("resumed", "lost", "repeated", "moved", "new"),
    [
        (_steps([3, 0], [1, 2], [4, 5]), 0, 0, 0, 0),
        (_steps([0, 3], [4, 5], [1, 2]), 0, 0, 4, 0),
        (_steps([0, 3], [1, 2]), 2, 0, 0, 0),
        (_steps([0, 3], [0, 3], [1, 2], [4, 5]), 0, 2, 4, 0),
        (_steps([0, 3], [1, 2], [4, 6]), 1, 0, 0, 1),
        (_steps([0, 3], [0, 1], [2, 4]), 1, 1, 1, 0),
    ],
)
def test_a_record_is_lost_repeated_or_moved_once(
    resumed: list[np.ndarray], lost: int, repeated: int, moved: int, new: int
) -> None:
    whole = _steps([0, 3], [1, 2], [4, 5])
    assert compare(whole, resumed, 6) == {
        "lost": lost,
        "repeated": repeated,
        "moved": moved,
        "new": new,
    }


def test_a_record_that_lacks_a_token_is_lost() -> None:
    found = compare(_steps([0, 0, 1], [1, 2, 2]), _steps([0, 0, 1], [2, 2]), 3)
    assert (found["lost"], found["repeated"], found["moved"]) == (1, 0, 0)


@pytest.mark.parametrize("loader", LOADERS)
def test_adapters_are_short_and_whole(loader: str) -> None:
    text = (_ADAPTERS / f"{loader}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert {"TITLE", "PACKAGES"} <= {*resume.facts_of(loader)}
    for name in ("__init__", "restore", "next", "state"):
        assert f"    def {name}(self" in text


def test_every_adapter_has_an_environment() -> None:
    files = {path.stem for path in _ADAPTERS.glob("*.py")} - {"__init__"}
    assert files == {*LOADERS}


def _results() -> dict[str, object]:
    case = {
        "outcome": "exact",
        **dict.fromkeys(("lost", "repeated", "moved", "new"), 0),
        **{"stopped_at": 5, "state_bytes": 9, "said": []},
    }
    cases = {name: dict(case) for name in CASES}
    cases["other"] = {"outcome": "refused", "error": "no | such state", "said": []}
    restore = {
        "seconds": {"0": [0.5], "10": [1.0, 3.0, 2.0]},
        "bytes": {"10": 1234},
        "right": {"10": True},
    }
    one = {
        "title": "Ours",
        "packages": {"gristmill": "1"},
        "date": "2026-01-02",
        "minutes": 2.0,
        "cases": cases,
        "restore": restore,
    }
    torchdata = copy.deepcopy(one) | {"title": "Other"}
    torchdata["cases"]["hosts"] |= {"outcome": "differs", "lost": 1200, "moved": 3}
    torchdata["cases"]["other"] = {**case, "outcome": "accepted"}
    torchdata["cases"]["killed"]["left"] = 2
    return {
        "environment": {"cpu_count": 2, "cpu": "x"},
        "records": 10,
        "loaders": {"gristmill": one, "torchdata": torchdata},
    }


def test_the_tables_say_what_was_found() -> None:
    results = _results()
    found = report.parts(results)
    ours, other = found["outcomes"].splitlines()[2:]
    assert ours.count("exact") == 7
    assert ours.endswith("| refused |")
    assert "| **1,200 / 0 / 3**† |" in other
    assert other.endswith("| **taken**† |")
    assert "| Ours | other data | refused | no / such state |" in found["notices"]
    assert "| 0.50 (0.50..0.50) | 2.00 (1.00..3.00) | 1,234 |" in found["restoring"]
    assert found["left"].endswith("Other 2.")
    assert found["ours"].startswith("gristmill has no failure")
    results["loaders"]["gristmill"]["cases"]["stopped"]["outcome"] = "differs"
    assert report.parts(results)["ours"] == (
        "gristmill fails in: stopped (**0 / 0 / 0**)."
    )


def test_the_page_has_a_place_for_each_table() -> None:
    page = (reports.ROOT / reports.PAGES / "resume.md").read_text(encoding="utf-8")
    filled = report.fill(page, _results())
    for text in report.parts(_results()).values():
        assert text in filled
    marks = re.findall(r"<!-- (\w+): begin -->", page)
    assert sorted(marks) == sorted(report.parts(_results()))


def test_in_what_is_kept_ours_stands_first_and_is_exact() -> None:
    path = reports.ROOT / reports.RESULTS / "resume.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    assert [*results["loaders"]] == [x for x in LOADERS if x in results["loaders"]]
    assert next(iter(results["loaders"])) == "gristmill"
    assert results["records"] == 200_000
    assert report.is_exact(results["loaders"]["gristmill"]["cases"])


# Of grain and TensorFlow: what they take, they take without a look at the data.
_OUTCOMES = {
    "gristmill": {"stopped": "exact", "packing": "exact", "other": "refused"},
    "grain_map": {"stopped": "exact", "packing": "exact", "other": "accepted"},
    "tf_data": {"stopped": "exact", "packing": "not offered", "other": "accepted"},
    # It has no state: its numbers are those of two draws.
    "webdataset": {"stopped": "differs", "packing": "not offered"},
}


# Those that take longest, in a soak: what tries them is the same.
@pytest.mark.slow
@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(name, marks=pytest.mark.soak)
        if name in ("grain_map", "tf_data")
        else name
        for name in QUICK
    ],
)
def test_loaders_resume_and_gristmill_is_exact(
    loader: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "resume.json"
    argv = ["--quick", "--work-dir", str(tmp_path), "--json", str(path)]
    assert resume.main([*argv, "--loaders", loader]) == 0
    found = json.loads(path.read_text())["loaders"][loader]
    outcomes = {case: one["outcome"] for case, one in found["cases"].items()}
    assert {**outcomes, **_OUTCOMES[loader]} == outcomes
    assert "failed" not in outcomes.values()
    if loader != "webdataset":
        assert found["restore"]["right"] == {"10": True, "100": True}
