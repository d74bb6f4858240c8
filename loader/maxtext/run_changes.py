"""Changes of a continued run: weights and batch size, from a step on."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Protocol

from gristmill import loader
from gristmill.dataset.base.errors import StateMismatchError

_log = logging.getLogger(__name__)

# Of Grain's operations that may stop within a record: chunks of it, or what did not fit
# into a row. They read it again, and the records of their last row.
_IN_A_RECORD = frozenset({"next_index_in_buffer", "parent_state"})
_HELD_STEPS = 2


class HasBatches(Protocol):
    """What reads batches, from the first step on whenever it is iterated."""

    batches: loader.GlobalBatches


@dataclasses.dataclass(frozen=True)
class Reader:
    """What one of MaxText's iterators reads, which may be other batches.

    Attributes:
        reads: What reads batches.
        batches_of: Makes such batches with another number of rows.
    """

    reads: HasBatches
    batches_of: Callable[[int], loader.GlobalBatches]


def change_batches(iterators: Iterable[Any], states: Iterable[str]) -> None:
    """Lets MaxText's iterators go on from states of other weights or batch sizes.

    Up to the first step that no host has begun they have those of the states, and from
    there on their own. It restarts them, as they are about to be restored.

    Args:
        iterators: MaxText's data iterators of this host, that have `gristmill_readers`.
        states: What all hosts have saved, as JSON.

    Raises:
        StateMismatchError: The states are of a mixture of other datasets.
    """
    places = [place for text in states for place in places_of(json.loads(text))]
    for iterator in iterators:
        readers: Sequence[Reader] = getattr(iterator, "gristmill_readers", ())
        for reader in readers:
            own = reader.reads.batches
            changed = changed_batches(own, reader.batches_of, places)
            if changed is not own:
                reader.reads.batches = changed
                iterator.reset()


def changed_batches(
    own: loader.GlobalBatches,
    batches_of: Callable[[int], loader.GlobalBatches],
    places: Sequence[tuple[dict[str, Any], int]],
) -> loader.GlobalBatches:
    """Returns batches that are those of states, and a run's own where no one was yet.

    They are the same object if nothing changes. What else differs is refused where the
    states are taken.

    Args:
        own: The batches of the run, of one batch size and one set of weights.
        batches_of: Makes such batches with another number of rows.
        places: The states of feeds of all hosts and workers, and how many steps each
            has begun from there on.

    Raises:
        StateMismatchError: The states are of a mixture of other datasets.
    """
    mixture = own.schedule.mixture
    if not places or (places[0][0]["mixture"] is None) != (mixture is None):
        return own
    state, _ = places[0]
    _check_names(own, state)
    sizes = [(0, state["batch_size"])]
    sizes += [(each["step"], each["batch_size"]) for each in state.get("resized", ())]
    phases = [] if mixture is None else state["mixture"]["phases"]
    past = [(each["from_position"], _exact(each["weights"])) for each in phases]
    weights = [] if mixture is None else [mixture.phases[0].weights]
    if sizes == [(0, own.batch_size)] and [each for _, each in past] == weights:
        return own
    found = batches_of(sizes[0][1])
    for step, size in sizes[1:]:
        found = found.resized(size, step=step)
    for position, each in past:
        step, _ = found.schedule.sizes.find(position)
        found = found.with_weights(_named(own, each), step=step)
    step = max(feed["step"] + begun for feed, begun in places)
    if sizes[-1][1] != own.batch_size:
        _tell(step, "batch size", f"{own.batch_size:,} rows")
        found = found.resized(own.batch_size, step=step)
    if past and past[-1][1] != weights[0]:
        named = _named(own, weights[0])
        parts = (f"{name} {float(share):.4g}" for name, share in named.items())
        _tell(step, "weights", ", ".join(parts))
        found = found.with_weights(named, step=step)
    return found


def _check_names(own: loader.GlobalBatches, state: dict[str, Any]) -> None:
    names = tuple(entry["name"] for entry in state["datasets"])
    if own.names and names != own.names:
        raise StateMismatchError(
            "the checkpoint is of a mixture of other datasets",
            expected=", ".join(own.names),
            got=", ".join(names),
            cure="give the datasets of the checkpoint, in their order and by their "
            "names, 0 as the weight of those to leave out; to add one, begin the data "
            "anew, with another run_name and load_full_state_path=.../STEP/items",
        )


def _tell(step: int, what: str, value: str) -> None:
    _log.warning(
        "going on with the %s of the checkpoint up to step %s of the data, and with %s "
        "from there on",
        *(what, f"{step:,}", value),
    )


def _named(
    batches: loader.GlobalBatches, weights: Sequence[Fraction]
) -> dict[str, Fraction]:
    return dict(zip(batches.names, weights, strict=True))


def _exact(weights: Sequence[str]) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, weights))


def places_of(state: Any, held: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields the states of feeds in what Grain's pipelines have made of them.

    With each comes how many steps its reader has begun from that state on.

    Args:
        state: A state of one of MaxText's iterators, or a part of it.
        held: Steps that the operation around it reads again, to go on in a record.
    """
    if isinstance(state, dict):
        if {"feed", "next_row"} <= state.keys():
            yield state["feed"], max(int(state["next_row"] > 0), held)
        elif {"version", "step", "mixture"} <= state.keys():
            yield state, 0
        else:
            if not _IN_A_RECORD.isdisjoint(state):
                held = _HELD_STEPS
            for part in state.values():
                yield from places_of(part, held)
    elif isinstance(state, list):
        for part in state:
            yield from places_of(part, held)
