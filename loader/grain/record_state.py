"""The state of the records of one host, and how it is compared.

It is the state of the feed at the step that the records are of, the place in that step,
and which host and worker has them. Unlike the state of a feed it is that of one host:
after a packer, hosts stand at different steps, and none knows where the others are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.base.errors import InputError, StateMismatchError
from gristmill.loader.base.state_fields import StateFields
from gristmill.loader.feed.state import refuse_grains
from gristmill.loader.order.hosts import host_rows


@dataclasses.dataclass(frozen=True)
class Reader:
    """Which records one reader has: those of a host, or of one of its workers.

    Attributes:
        host: Which host.
        hosts: Number of hosts.
        worker: Which worker of the host.
        workers: Number of workers; each has every so many-th step.
    """

    host: int
    hosts: int
    worker: int = 0
    workers: int = 1

    def __str__(self) -> str:
        text = f"host {self.host} of {self.hosts}"
        if self.workers > 1:
            text += f", worker {self.worker} of {self.workers}"
        return text

    def check(self, batch_size: int) -> None:
        """Raises InputError if there is no such host, or it cannot have such batches.

        They must divide among the hosts.
        """
        host_rows(batch_size, (self.host, self.hosts))

    def rows(self, count: int) -> slice:
        """Returns the rows of a batch of so many, which need not divide among hosts.

        They follow one another: rows in steps of the number of hosts would meet the
        pattern of a mixture again and again at the same places, and hosts would have
        other shares of its datasets.
        """
        first, end = self.host * count, (self.host + 1) * count
        return slice(first // self.hosts, end // self.hosts)

    def part(self, worker: int, workers: int) -> Reader:
        """Returns one of the workers who share the steps of this reader."""
        return dataclasses.replace(
            self,
            worker=self.worker + worker * self.workers,
            workers=self.workers * workers,
        )

    def first_step(self, start: int, steps: int | None) -> int:
        """Returns the first step of this reader from a step on, or the end."""
        first = start + (self.worker - start) % self.workers
        return first if steps is None else min(first, steps)


def record_state(feed: dict[str, Any], row: int, reader: Reader) -> dict[str, Any]:
    """Returns a state, as JSON values.

    Args:
        feed: The state of the feed that gives the step next.
        row: How many records of the step this reader has given.
        reader: Which reader it is.
    """
    return {
        "feed": feed,
        "next_row": row,
        "host": reader.host,
        "hosts": reader.hosts,
        "worker": reader.worker,
        "workers": reader.workers,
    }


def checked_state(state: object) -> StateFields:
    """Returns the fields of a state: all are there, and of the kind they must be.

    Raises StateMismatchError for a state of Grain's own order, and InputError for what
    is not a state.
    """
    refuse_grains(state, "batches.records()")
    if not isinstance(state, Mapping) or "feed" not in state:
        raise InputError(
            "not the state of the records of a host",
            expected="what get_state of batches.records() returned",
            got=f"{state!r:.200}",
            cure="give the whole state, as it was saved with the checkpoint",
        )
    fields = StateFields(state)
    names = list(record_state({}, 0, Reader(0, 1)))
    fields.only(*names)
    for name in names[1:]:
        fields.integer(name)
    return fields


def check_reader(fields: StateFields, reader: Reader, step: Any, row: int) -> None:
    """Raises StateMismatchError for the state of another host or worker."""
    own = record_state({}, 0, reader)
    names = list(own)[2:]
    theirs = Reader(*(fields.integer(name) for name in names))
    if theirs == reader:
        return
    begins = (step, row, theirs.worker, theirs.workers) == (0, 0, 0, 1)
    if begins and theirs.part(reader.worker, reader.workers) == reader:
        return
    if theirs.hosts != reader.hosts:
        cure = f"run {theirs.hosts} hosts: no state says where all of them are. "
        cure += "Another number can continue from the state of a feed, batches.feed()"
    elif theirs.host != reader.host:
        cure = "give each host the state that it wrote itself"
    else:
        cure = f"run {theirs.workers} workers, which each wrote a state"
        if theirs.workers == 1:
            cure = "run one worker, or none, as in the run that wrote the state"
    raise StateMismatchError(
        "the state is of the records of another host or worker",
        where=f"step {step}, next row {row}",
        expected=reader,
        got=theirs,
        cure=cure,
    )
