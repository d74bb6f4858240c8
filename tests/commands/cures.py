"""Cures of errors, and whether they help when they are followed."""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import sys
from collections.abc import Callable

from gristmill.pipelines.commands.main import main

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@dataclasses.dataclass(frozen=True)
class Row:
    """A situation in which an error is raised, and what is done about it.

    Attributes:
        wrong: The command line that fails; several, of which the last fails, are
            separated by line ends.
        cured: Command lines that follow the cure.
        given: Makes the files that are needed beside the common ones.
    """

    wrong: str
    cured: str
    given: Callable[[], object] = lambda: None


def options_of(text: str) -> set[str]:
    """Returns the options of commands that a text names."""
    return set(_OPTION.findall(text))


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
