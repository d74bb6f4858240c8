"""The tables of docs/reference/errors.md: every message of errors, from the code.

A comment `<!-- messages: CLASS -->` of the page, and the line after it, become the
table of a class.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

from gristmill.dataset.base import errors

ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = ("dataset", "loader", "pipelines", "transforms")
_MARK = re.compile(r"^<!-- messages: (\w+) -->\n.*$", re.MULTILINE)


def classes() -> list[type[errors.GristmillError]]:
    """Returns the classes of errors, as they are defined."""
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, errors.GristmillError)
        and value is not errors.GristmillError
    ]


def messages_in(source: str) -> Iterator[tuple[str, str, str]]:
    """Yields class, what is wrong, and what to do, of errors that a module makes."""
    names = {kind.__name__ for kind in classes()}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if name not in names or not node.args:
            continue
        given = {word.arg: word.value for word in node.keywords}
        cure = given.get("cure", node.args[4] if len(node.args) > 4 else None)
        cures = " / ".join(_texts(cure)) if cure is not None else ""
        for what in _texts(node.args[0]):
            if re.search(r"\w{3}", what):
                yield name, what, cures


def _texts(node: ast.expr) -> list[str]:
    """Returns the texts that an expression may have, with … for what it computes."""
    if isinstance(node, ast.Constant):
        return [str(node.value)] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else "…"
            for part in node.values
        ]
        return ["".join(parts)]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    if isinstance(node, ast.BinOp):
        left, right = _texts(node.left) or ["…"], _texts(node.right) or ["…"]
        return [one + other for one in left for other in right]
    return []


@functools.cache
def messages() -> dict[str, dict[str, str]]:
    """Returns what is wrong and what to do, of all errors of the code, by class."""
    found: dict[str, dict[str, str]] = {}
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            for name, what, cure in messages_in(source):
                cures = found.setdefault(name, {})
                cures[what] = cures.get(what) or cure
    return found


def table(name: str) -> str:
    """Returns the messages of a class of errors, as a table in Markdown."""
    found = messages()[name]
    lines = [row(what, found[what]) for what in sorted(found)]
    return "\n".join(["| message | what to do |", "| --- | --- |", *lines])


def row(what: str, cure: str) -> str:
    """Returns the line of a message in its table."""
    return f"| {_cell(what)} | {_cell(cure)} |"


def _cell(text: str) -> str:
    text = re.sub(r"([*_<|\\])", r"\\\1", re.sub(r"…+", "…", text))
    return text.replace("\n", " ")


def with_tables(text: str) -> str:
    """Returns a page with the tables in place of their comments."""
    return _MARK.sub(lambda match: table(match[1]), text)


def add_tables(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts the tables into a page."""
    del app, docname
    source[0] = with_tables(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", add_tables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
