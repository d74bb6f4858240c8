"""A job: begun once, done in steps by many workers, and committed once.

Each command that walks over a dataset or over inputs is a job. Processes of this
machine run it (`pipelines.local.pool.run_job`), or a Beam runner
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
    """A result of a step, which is small."""

    @property
    def done(self) -> Done:
        """The work done, for progress and metrics."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun(Generic[T]):
    """The tasks of a job that has begun.

    Attributes:
        label: The work, for a progress bar, such as `verifying`.
        noun: The plural of a task's subject.
        tasks: The tasks, best made on access: there may be millions.
        parts: The number of tasks.
        planned: The number of shards to make, if it is not `parts`.
        stored_bytes: Size of all files to read.
        known: Results to gather besides those of tasks.
        sources: The paths read, for the lineage of a job on Beam.
        sink: The dataset written.
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
"""The work of a worker on a task: it returns a result, or yields several."""


class Job(Protocol[R]):
    """Work in parts: picklable, small, and safe to repeat in any part."""

    def begin(self) -> Begun[Any]:
        """Returns the tasks."""

    @property
    def step(self) -> Step[Any]:
        """The function to call on each task, on a worker."""

    @property
    def commit(self) -> Callable[[Gathered], R]:
        """The function to call on all gathered results."""


def results_of(step: Callable[[Any], Any], task: Any) -> Iterator[Any]:
    """Yields the results of a task."""
    made = step(task)
    if isinstance(made, Iterator):
        yield from made
    else:
        yield made


def list_results(step: Callable[[Any], Any], task: Any) -> list[Any]:
    """Returns the results of a task as a list, which pickles."""
    return [*results_of(step, task)]
