"""Cases with a kept result: what must stay true for a user while the code changes.

A case is a function that uses public names and commands, or a script of commands. It
works in an empty directory, and returns facts that JSON can hold: digests of records in
order, record numbers, tokens, places. It returns no file name, layout or message,
because those may change.
"""

import contextlib
import importlib
import json
import pathlib
from typing import Any, NamedTuple

RESULTS = pathlib.Path(__file__).parent / "results"
# The modules of this folder that hold cases. The results of each module are one file.
GROUPS = ("conversions", "changes", "rows", "orders")


class Case(NamedTuple):
    """A case: the module's name, its own, and a function that returns facts."""

    group: str
    name: str
    make: Any

    def run(self, folder):
        """Returns the facts, as JSON has them."""
        with contextlib.chdir(folder):
            return json.loads(json.dumps(self.make()))


_cases = []


def case(make, name=""):
    """Registers a function as a case of its module, by its own name or another."""
    group = make.__module__.rpartition(".")[2]
    _cases.append(Case(group, name or make.__name__, make))
    return make


def all_cases():
    """Returns the cases of all groups."""
    for group in GROUPS:
        importlib.import_module(f"tests.golden.{group}")
    return list(_cases)


def kept(group):
    """Returns the kept results of a group by name."""
    file = RESULTS / f"{group}.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else {}
