"""Cases with a kept result: what must stay true for a user while the code changes.

A case is a function that uses public names and commands, works in an empty directory,
and returns facts that JSON can hold: digests of records in order, record numbers,
tokens, places. It returns no file name, layout or message, because those may change.
"""

import dataclasses
import importlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"
# The modules of this folder that hold cases. The results of each module are one file.
GROUPS = ("conversions", "changes", "rows", "orders", "feeds")

Run = Callable[[pathlib.Path], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A case of a group.

    Attributes:
        group: The module's name.
        name: The function's name.
        run: Takes an empty directory, and returns facts.
    """

    group: str
    name: str
    run: Run

    def kept(self):
        """Returns the kept result, or None if there is none."""
        file = RESULTS / f"{self.group}.json"
        if not file.exists():
            return None
        facts = json.loads(file.read_text(encoding="utf-8"))
        return facts.get(self.name)


_cases = []


def case(run, name=""):
    """Registers a function as a case of its module, by its own name or another."""
    group = run.__module__.rpartition(".")[2]
    _cases.append(Case(group, name or run.__name__, run))
    return run


def all_cases():
    """Returns the cases of all groups."""
    for group in GROUPS:
        importlib.import_module(f"tests.golden.{group}")
    return list(_cases)
