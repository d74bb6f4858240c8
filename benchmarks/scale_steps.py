"""The cost of each step of a path: CPU time, and the size of a runner's elements."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import apache_beam as beam
from apache_beam.coders import coders

_T = TypeVar("_T")


class Steps:
    """The measurements of one path at one number of shards.

    Attributes:
        found: CPU seconds of each step (`NAME_seconds`), and bytes: `element_bytes` of
            the largest element about one shard or file, `gathered_bytes` of the largest
            one that is about many, and what else a path adds.
    """

    def __init__(self) -> None:
        self.found: dict[str, float] = {"element_bytes": 0, "gathered_bytes": 0}
        self._coder: coders.Coder = beam.coders.registry.get_coder(object)

    def timed(self, name: str, work: Callable[[], _T]) -> _T:
        """Returns the result of `work`; adds its time to that of the step."""
        begin = time.process_time()
        result = work()
        key = f"{name}_seconds"
        taken = time.process_time() - begin
        self.found[key] = self.found.get(key, 0) + taken
        return result

    def sent(self, element: _T, *, gathers: bool = False) -> _T:
        """Passes an element through Beam's coder, as between two stages.

        Args:
            element: The element.
            gathers: Whether it is about many shards or files, not one.

        Returns:
            What the next stage gets.
        """
        encoded = self._coder.encode(element)
        key = "gathered_bytes" if gathers else "element_bytes"
        self.found[key] = max(self.found[key], len(encoded))
        result: _T = self._coder.decode(encoded)
        return result


def graph_bytes(transform: beam.PTransform) -> int:
    """Returns the size of the job graph that a runner gets."""
    pipeline = beam.Pipeline()
    _ = pipeline | transform
    return len(pipeline.to_runner_api().SerializeToString())
