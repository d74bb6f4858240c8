"""A job: begun once, done in steps by many workers, and committed once.

Each command that walks over a dataset or over inputs is one. Processes of this machine
carry it out (`pipelines.local.pool.run_job`), or a Beam runner
(`transforms.beam.run_job`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, Self, TypeVar

from gristmill.dataset.base.columns import Done, Gatherable, Gathered

T = TypeVar("T")
R = TypeVar("R", covariant=True)


class StepResult(Gatherable, Protocol):
    """A small result of a step."""

    @property
    def done(self) -> Done:
        """What was done for it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun(Generic[T]):
    """What is to be done.

    Attributes:
        label: Says so in a bar, such as `verifying`.
        noun: What there are many of.
        tasks: The tasks, best made on access: there may be millions.
        parts: How many there are.
        planned: How many shards they are to make, if not so many.
        stored_bytes: Size of all that is to be read.
        known: What is gathered beside the results.
        sources: What is read, for the lineage of a job on Beam.
        sink: The dataset that is written.
    """

    label: str
    noun: str = "shards"
    tasks: Iterable[T] = ()
    parts: int = 0
    planned: int | None = None
    stored_bytes: int = 0
    known: tuple[Gatherable, ...] = ()
    sources: tuple[str, ...] = ()
    sink: str | None = None

    @classmethod
    def on(
        cls, dataset: str, label: str, tasks: Iterable[T], *known: Gatherable
    ) -> Self:
        """Returns the tasks on the shards of a dataset, for a job that changes it."""
        listed: list[Any] = list(tasks)
        return cls(
            label=label,
            tasks=listed,
            parts=len(listed),
            stored_bytes=sum(task.file_bytes for task in listed),
            known=known,
            sources=(dataset,),
            sink=dataset,
        )


Step = Callable[[T], StepResult | Iterator[StepResult]]
"""What a worker does with a task: it returns a result, or yields some."""


class Job(Protocol[R]):
    """Work in parts, picklable, and small unless only `begin` needs more.

    A runner may do any of it again.
    """

    def begin(self) -> Begun[Any]:
        """Returns the tasks."""

    @property
    def step(self) -> Step[Any]:
        """What is done with each, on a worker."""

    @property
    def commit(self) -> Callable[[Gathered], R]:
        """What is done with all results."""


def results_of(step: Callable[[Any], Any], task: Any) -> Iterator[Any]:
    """Yields the results of a task."""
    made = step(task)
    if isinstance(made, Iterator):
        yield from made
    else:
        yield made


def list_results(step: Callable[[Any], Any], task: Any) -> list[Any]:
    """Returns the results of a task: a generator is no result of a process."""
    return [*results_of(step, task)]
