"""Cures of errors: where the package raises them, and whether they help when followed.

A place is a file of the package and the function in it that makes an error. Places, not
words, name the rows of the table: words are edited more often than code moves.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from unittest import mock

from gristmill import __file__ as package_file
from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.commands.main import main

PACKAGES = ("dataset", "loader", "pipelines", "transforms")
# An option of a command, or a command of ours.
_NAMED = re.compile(r"(?<![\w-])--[a-z][a-z-]*|\bgristmill (?=[a-z])|`gristmill ")


@dataclasses.dataclass(frozen=True)
class Row:
    """A situation in which an error is raised, and what is done about it.

    Attributes:
        place: `file.py function`: where the error is made.
        wrong: The command line that fails; several, of which the last fails, are
            separated by line ends.
        cured: Command lines that follow the cure.
        given: Makes the files that are needed beside the common ones.
        apart: Whether the error is made in another process, whose places are not seen.
    """

    place: str
    wrong: str
    cured: str
    given: Callable[[], object] = lambda: None
    apart: bool = False


def options_of(text: str) -> set[str]:
    """Returns the options of commands that a text names."""
    return {name for name in _NAMED.findall(text) if name.startswith("--")}


def places_with_commands() -> set[str]:
    """Returns the places whose cures name one of our commands or an option."""
    return {
        place
        for package in PACKAGES
        for path in pathlib.Path(package).rglob("*.py")
        for place in _places_of(path)
    }


@functools.cache
def _places_of(path: pathlib.Path) -> frozenset[str]:
    if "cure" not in (source := path.read_text("utf-8")):
        return frozenset()
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = set()

    def text_of(node: ast.AST) -> str:
        parts = []
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                parts.append(each.value)
            elif (
                isinstance(each, ast.Name) and constants.get(each.id, node) is not node
            ):
                parts.append(text_of(constants[each.id]))
        return " ".join(parts)

    def visit(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}" if function else child.name
            names = []
            if isinstance(child, ast.keyword):
                names = [child.arg or ""]
            elif isinstance(child, ast.Assign):
                names = [t.id for t in child.targets if isinstance(t, ast.Name)]
            is_cure = function and any("cure" in name for name in names)
            if is_cure and _NAMED.search(text_of(child.value)):
                found.add(f"{path.as_posix()} {function}")
            visit(child, inner)

    visit(tree, "")
    return frozenset(found)


@contextlib.contextmanager
def errors_made() -> Iterator[list[tuple[GristmillError, set[str]]]]:
    """Lists the errors that are made in the body, each with the places on its stack."""
    root = pathlib.Path(package_file).parent
    made: list[tuple[GristmillError, set[str]]] = []
    create = GristmillError.__init__

    def remember(self: GristmillError, *args: object, **kwargs: object) -> None:
        create(self, *args, **kwargs)
        places, frame = set(), sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            with contextlib.suppress(ValueError):
                path = pathlib.Path(code.co_filename).relative_to(root).as_posix()
                name = code.co_qualname.replace(".<locals>", "")
                places.add(f"{path} {name}")
            frame = frame.f_back
        made.append((self, places))

    with mock.patch.object(GristmillError, "__init__", remember):
        yield made


def forget() -> None:
    """Empties the caches of the package: they know files by paths that are relative."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gristmill."):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def run(line: str) -> int:
    """Runs a command line of ours in this process, and returns its exit code."""
    try:
        main(shlex.split(line))
    except SystemExit as end:
        return int(end.code or 0)
    return 0
