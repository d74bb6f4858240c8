"""The execution of a command's tasks by processes of this machine, under a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from gristmill.pipelines.local.pool import (
    alone_seconds,
    default_workers,
    map_unordered,
)
from gristmill.pipelines.local.progress import counter_shown

T = TypeVar("T")
R = TypeVar("R")


class Done(NamedTuple):
    """What a finished task adds to a bar.

    Attributes:
        stored_bytes: Size of the files that were read.
        records: Records in them.
        raw_bytes: Size of these.
    """

    stored_bytes: int
    records: int
    raw_bytes: int


def run_tasks(
    step: Callable[[T], R],
    tasks: Sequence[T],
    *,
    label: str,
    noun: str,
    stored_bytes: int,
    remote: bool,
    workers: int | None,
    show_progress: bool,
    done: Callable[[R], Done],
) -> Iterator[R]:
    """Yields the results of all tasks, in the order in which they finish.

    Args:
        step: What is done with a task in a worker process. Must be picklable.
        tasks: The tasks.
        label: What is being done, such as `verifying`.
        noun: What there are many of, such as `shards`.
        stored_bytes: Size of all that is read.
        remote: Whether it is where answers take a while.
        workers: Number of processes; None for the number of cores, which start where
            there is enough to do.
        show_progress: Whether to show progress on standard error.
        done: Returns the amount that a result adds to the bar.

    Raises:
        WorkerDiedError: A worker process was killed, or ended itself.
    """
    made = map_unordered(
        step,
        tasks,
        workers=max(1, min(workers or default_workers(), len(tasks))),
        alone_seconds=alone_seconds(workers, stored_bytes, remote=remote),
    )
    with counter_shown(
        label, noun, len(tasks), stored_bytes, show=show_progress
    ) as counter:
        for result in made:
            counter.add(*done(result))
            yield result
