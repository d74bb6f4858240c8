"""Contestants take turns, and are compared within a round."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from benchmarks import rounds
from benchmarks.contest import write_between


def test_every_round_begins_with_another_contestant() -> None:
    assert [*rounds.take_turns(["a", "b", "c"], 4)] == [
        *((0, key) for key in "abc"),
        *((1, key) for key in "bca"),
        *((2, key) for key in "cab"),
        *((3, key) for key in "abc"),
    ]


def test_ratios_are_of_the_rounds_that_both_have() -> None:
    runs = [
        {"contestant": key, "round": number, "seconds": seconds}
        for key, number, seconds in (
            *(("a", 3, 8.0), ("a", 1, 6.0)),
            *(("b", 1, 2.0), ("b", 2, 1.0), ("b", 3, 4.0)),
        )
    ]
    a, b = (rounds.by_round(runs, key, lambda run: run["seconds"]) for key in "ab")
    assert rounds.ratios(a, b) == [3.0, 2.0]
    assert rounds.ratios(b, a) == [1 / 3, 0.5]


class TestRunProcess:
    def run(self, program: str, **options: float) -> dict[str, object]:
        command = [sys.executable, "-c", program]
        return rounds.run_process("key", command, variables={"WORD": "7"}, **options)

    def test_takes_the_last_object_that_it_prints(self) -> None:
        program = (
            "import os; print('{\"a\": 1}'); print('{\"a\": %s}' % os.environ['WORD'])"
            "; print('so long')"
        )
        assert self.run(program) == {"contestant": "key", "a": 7}

    def test_quotes_one_that_measures_nothing(self) -> None:
        with pytest.raises(RuntimeError, match="key: exit code 3\nno such luck"):
            self.run("import sys; print('no such luck', file=sys.stderr); sys.exit(3)")

    def test_gives_up_after_the_limit(self) -> None:
        with pytest.raises(subprocess.TimeoutExpired):
            self.run("import time; time.sleep(60)", limit_seconds=0.2)


def test_write_between_replaces_what_was_there(tmp_path: pathlib.Path) -> None:
    path, marks = tmp_path / "page.md", ("<!-- begin -->", "<!-- end -->")
    path.write_text("head\n<!-- begin -->\nold\n<!-- end -->\ntail\n")
    for text in ("new\n", "newer"):
        write_between(path, marks, text)
    assert path.read_text() == ("head\n<!-- begin -->\nnewer\n<!-- end -->\ntail\n")
    with pytest.raises(ValueError, match="not found"):
        write_between(path, ("<!-- other -->", "<!-- end -->"), "")
