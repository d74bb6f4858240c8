"""Errors: one base, messages for people, and whole after a trip between processes."""

from __future__ import annotations

import ast
import copy
import inspect
import pathlib
import pickle

import pytest

from gristmill.dataset.base import errors
from gristmill.dataset.base.errors import (
    CorruptFrameError,
    CorruptShardError,
    GristmillError,
    InputError,
)

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, Exception)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_all_have_one_base_and_a_builtin(kind: type[GristmillError]):
    assert issubclass(kind, GristmillError)
    if kind is not GristmillError:
        assert issubclass(
            kind, (ImportError, IndexError, OSError, RuntimeError, ValueError)
        )


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("trip", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_messages_survive_a_trip(kind: type[GristmillError], trip):
    error = kind(
        "it is broken", where="a/b, byte offset 5", expected=3, got=0, cure="mend it"
    )
    error.add_note("from shard 7")
    again = trip(error)
    assert type(again) is kind
    assert str(again) == str(error)
    assert str(again).splitlines() == [
        "it is broken",
        "  where:    a/b, byte offset 5",
        "  expected: 3",
        "  got:      0",
        "  to do:    mend it",
    ]
    assert again.__notes__ == ["from shard 7"]


def test_attributes_survive_a_trip():
    error = CorruptFrameError("bad", where="x")
    error.reason, error.offset, error.end, error.detail = "data", 17, 40, "expected"
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, again.offset, again.end) == ("data", 17, 40)
    assert again.detail == "expected"


@pytest.mark.parametrize(
    "error",
    [
        InputError("what"),
        InputError("what", where="here", cure="do this"),
        InputError("two\nlines", expected="to do: a thing", got="a\n  file x\nb"),
        CorruptShardError("what", "where", 1, 2.5, "to do"),
    ],
)
def test_errors_come_back_from_their_text(error):
    again = type(error).from_text(str(error))
    assert (type(again), again.facts()) == (type(error), error.facts())


ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_every_error_that_is_made_says_what_to_do():
    names = {kind.__name__ for kind in CLASSES}
    without, made = [], 0
    for package in ("dataset", "loader", "pipelines", "transforms"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                named = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if named not in names:
                    continue
                made += 1
                given = {word.arg for word in node.keywords}
                # `**facts` are those of another error.
                if len(node.args) < 5 and not given & {"cure", None}:
                    without.append(f"{path}:{node.lineno}")
    assert without == []
    assert made > 500


def test_options_are_parameters_in_python_and_options_on_the_command_line() -> None:
    error = errors.InputError(
        "unknown --on-corrupt",
        where="a/--b",
        got="--on-corrupt stop",
        cure="give --on-corrupt skip, or see gristmill clean --unfinished; or --split",
    )
    assert str(error) == (
        "unknown `on_corrupt`\n"
        "  where:    a/--b\n"
        "  got:      `on_corrupt` stop\n"
        "  to do:    give `on_corrupt` skip, or see gristmill clean --unfinished; or "
        "`split`"
    )
    assert "give --on-corrupt skip" in error.for_commands()
    other = "tar --concatenate, or docker run --shm-size=2g"
    assert other in str(errors.InputError("no room", cure=other))
    assert error.facts()["cure"] == error.cure
