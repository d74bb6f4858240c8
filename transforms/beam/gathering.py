"""The step before a commit: small results of all workers become one element."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import apache_beam as beam


class Addable(Protocol):
    """A collection that adds up in any order, and pickles compactly."""

    def add(self, element: Any) -> None:
        """Takes an element."""

    def extend(self, other: Any) -> None:
        """Takes all elements of another collection of its kind."""


class _GatherFn(beam.CombineFn):
    """Gathers elements as columns: those of a million shards become one element.

    Args:
        kind: Makes a collection without elements.
    """

    def __init__(self, kind: type[Addable]) -> None:
        self._kind = kind

    def create_accumulator(self) -> Addable:
        return self._kind()

    def add_input(self, gathered: Addable, element: Any) -> Addable:
        if isinstance(element, self._kind):
            gathered.extend(element)
        else:
            gathered.add(element)
        return gathered

    def merge_accumulators(self, parts: Iterable[Addable]) -> Addable:
        whole = self._kind()
        for part in parts:
            whole.extend(part)
        return whole

    def extract_output(self, gathered: Addable) -> Addable:
        return gathered


def gather(kind: type[Addable]) -> Any:
    """Returns the step that gathers all elements in one collection of a kind."""
    # The default, for no element at all, would be a side input that holds everything.
    return beam.CombineGlobally(_GatherFn(kind)).without_defaults()
