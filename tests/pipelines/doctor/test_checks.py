"""All checks together: at once, each in time."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.doctor import dataset_place
from gristmill.pipelines.doctor.checks import DATASET_CHECKS, MACHINE_CHECKS, examine
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.finding import Finding, ok
from tests.support.datasets import convert
from tests.support.gcs_server import Fault, GcsServer

ROOT = pathlib.Path(__file__).parents[3]


def test_a_check_that_does_not_end_is_a_warning() -> None:
    stuck = threading.Event()

    def wait(place: DatasetPlace | None) -> list[Finding]:
        stuck.wait()
        return []

    looks = {"stuck": wait, "fine": lambda place: [ok("all is well")]}
    late, fine = examine(None, seconds=0.2, machine_checks=looks)
    stuck.set()
    assert (late.check, late.level) == ("stuck", "warning")
    assert late.seen == "not checked: no answer within seconds"
    assert (fine.check, fine.level) == ("fine", "ok")


def test_a_failure_that_is_no_finding_is_raised() -> None:
    def fail(place: DatasetPlace | None) -> list[Finding]:
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError, match="a mistake of ours"):
        examine(None, machine_checks={"wrong": fail})


def test_where_there_is_no_dataset_that_is_an_error(tmp_path: pathlib.Path) -> None:
    found = [one for one in examine(str(tmp_path / "c4")) if one.level == "error"]
    assert [one.check for one in found] == ["jobs"]
    seen = f"{tmp_path}/c4: not a committed dataset: there is no such directory"
    assert found[0].seen == seen
    assert "gristmill index" in found[0].cure
    with pytest.raises(InputError, match="empty"):
        examine("")


def test_every_check_says_something_of_a_dataset(tmp_path: pathlib.Path) -> None:
    names = {one.check for one in examine(convert(tmp_path, [[b"a"]]))}
    assert names == {*MACHINE_CHECKS, *DATASET_CHECKS} - {"bucket"}


@pytest.mark.slow
def test_a_bucket_that_is_silent_ends_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.faults.append(Fault("hold", times=99))
        monkeypatch.setattr(dataset_place, "_SECONDS", 0.2)
        found = {one.check: one for one in examine("gs://bucket/c4", seconds=1)}
    assert "no answer" in found["jobs"].seen
    assert found["jobs"].level == found["bucket"].level == "warning"


@pytest.mark.slow
def test_no_check_imports_what_it_looks_for(tmp_path: pathlib.Path) -> None:
    code = (
        "import sys\n"
        "from gristmill.pipelines.doctor.checks import examine\n"
        "examine(sys.argv[1])\n"
        "heavy = {'apache_beam', 'tensorflow', 'jax', 'grain', 'tensorstore'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, convert(tmp_path, [[b"a"]])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_the_page_has_all_checks() -> None:
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text(encoding="utf-8")
    missing = [
        name
        for name in {**MACHINE_CHECKS, **DATASET_CHECKS}
        if f"| `{name}` |" not in page
    ]
    assert missing == []
