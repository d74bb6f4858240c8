"""`gristmill doctor` as a command: its text, its JSON, its exit code."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest
from click.testing import CliRunner

from gristmill.pipelines.commands.doctor import findings_text
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.doctor import checks
from gristmill.pipelines.doctor.finding import error, ok, warning
from tests.support.datasets import convert
from tests.support.patient_doctor import make_patient
from tests.support.shell import gristmill, succeeded


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_patient(monkeypatch)


FINDINGS = [
    ok("1 GiB free"),
    warning("it is slow", why="steps wait", cure="make it faster"),
    error("it fails", why="nothing works", cure="repair it"),
]


def doctor(*arguments: str, code: int) -> str:
    done = CliRunner().invoke(cli, ["doctor", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def test_the_text_has_reasons_and_cures_where_something_is_wrong() -> None:
    assert findings_text(FINDINGS).splitlines() == [
        "ok         1 GiB free",
        "warning    it is slow",
        "             why:   steps wait",
        "             to do: make it faster",
        "error      it fails",
        "             why:   nothing works",
        "             to do: repair it",
        "1 error, 1 warning",
    ]


def named(findings: list[checks.Finding]) -> list[checks.Finding]:
    return [dataclasses.replace(finding, check="a check") for finding in findings]


@pytest.mark.parametrize(
    ("findings", "code"), [(FINDINGS, 1), (FINDINGS[:2], 0), (FINDINGS[:1], 0)]
)
def test_only_errors_make_it_fail(
    monkeypatch: pytest.MonkeyPatch, findings: list[checks.Finding], code: int
) -> None:
    monkeypatch.setattr(checks, "examine", lambda dataset: named(findings))
    found = json.loads(doctor("--json", code=code))
    assert found["errors"] == code
    assert found["warnings"] == (len(findings) > 1)
    assert found["installed"]["numpy"]
    assert [one["level"] for one in found["findings"]] == [
        one.level for one in findings
    ]
    assert found["findings"][0] == {
        **{"check": "a check", "level": "ok", "seen": "1 GiB free"},
        **{"why": "", "cure": ""},
    }
    doctor(code=code)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [(FINDINGS, ""), (FINDINGS[:2], "next (to try it here): gristmill demo\n")],
)
def test_what_comes_next_where_nothing_is_to_be_repaired(
    monkeypatch: pytest.MonkeyPatch, findings: list[checks.Finding], expected: str
) -> None:
    monkeypatch.setattr(checks, "examine", lambda dataset: named(findings))
    assert CliRunner().invoke(cli, ["doctor"]).stderr == expected


def test_a_path_that_is_none_is_wrong_usage() -> None:
    assert json.loads(doctor("gs:/b/c4", "--json", code=2))["error"]["got"]


@pytest.mark.slow
def test_the_cure_of_a_group_size_works(tmp_path: pathlib.Path) -> None:
    dataset = convert(tmp_path, [[bytes(100)] * 30], group_size=10)
    text = doctor(dataset, code=0)
    assert "chunks of 10 records of 100 bytes" in text
    _, _, cure = text.partition("; or gristmill ")
    command = cure.splitlines()[0].split()
    succeeded(*command, cwd=tmp_path)
    assert "one record in a chunk" in doctor(f"{dataset}-single", code=0)


@pytest.mark.slow
def test_as_a_shell_calls_it(tmp_path: pathlib.Path) -> None:
    done = gristmill("doctor", tmp_path / "none", cwd=tmp_path)
    # On a busy machine there is no answer in time, which is a warning.
    last = done.stdout.splitlines()[-1]
    assert done.returncode == (not last.startswith("0 errors, ")), done.stderr
    assert " jobs " in done.stdout
