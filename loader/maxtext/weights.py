"""Other weights of a mixture in a run that goes on: from one step on, for all hosts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Protocol

from gristmill import loader

_log = logging.getLogger(__name__)


class HasBatches(Protocol):
    """What reads batches, from the first step on whenever it is iterated."""

    batches: loader.GlobalBatches


def change_weights(iterators: Iterable[Any], states: Iterable[str]) -> None:
    """Lets MaxText's iterators go on from states with other weights than their own.

    Up to the first step that no host has begun they have the weights of the states, and
    from there on their own. It restarts them, as they are about to be restored.

    Args:
        iterators: MaxText's data iterators of this host, that have `gristmill_readers`.
        states: What all hosts have saved, as JSON.
    """
    places = [place for text in states for place in _places(json.loads(text))]
    for iterator in iterators:
        readers: Sequence[HasBatches] = getattr(iterator, "gristmill_readers", ())
        for reader in readers:
            changed = with_past_weights(reader.batches, places)
            if changed is not reader.batches:
                reader.batches = changed
                iterator.reset()


def with_past_weights(
    batches: loader.GlobalBatches, places: Sequence[tuple[dict[str, Any], int]]
) -> loader.GlobalBatches:
    """Returns batches with the weights of states, and their own where no one was yet.

    They are the same object if nothing changes, or if more than weights differ, which
    is refused where the states are taken.

    Args:
        batches: The batches, with weights that do not change.
        places: The states of feeds of all hosts and workers, and the row that comes
            next in the step of each.
    """
    mixture = batches.schedule.mixture
    if mixture is None or not places:
        return batches
    state, _ = places[0]
    names = tuple(entry["name"] for entry in state["datasets"])
    same = (state["batch_size"], names) == (batches.batch_size, batches.names)
    if not same or not state["mixture"]:
        return batches
    past = [
        (phase["from_position"] // batches.batch_size, _exact(phase["weights"]))
        for phase in state["mixture"]["phases"]
    ]
    own = mixture.phases[0].weights
    if [weights for _, weights in past] == [own]:
        return batches
    step = max(feed["step"] + (row > 0) for feed, row in places)
    if past[-1][1] != own:
        _log.warning(
            "the mixture has the weights of the checkpoint up to step %s of %s "
            "records, and %s from there on",
            f"{step:,}",
            f"{batches.batch_size:,}",
            ", ".join(f"{n} {float(w):.4g}" for n, w in zip(names, own, strict=True)),
        )
        past.append((step, own))
    for step, weights in past:
        batches = batches.with_weights(
            dict(zip(names, weights, strict=True)), step=step
        )
    return batches


def _exact(weights: Sequence[str]) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, weights))


def _places(state: Any) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields the states of feeds in what Grain's pipelines have made of them."""
    if isinstance(state, dict):
        if "feed" in state:
            yield state["feed"], state["next_row"]
        elif {"version", "step", "mixture"} <= state.keys():
            yield state, 0
        else:
            for part in state.values():
                yield from _places(part)
    elif isinstance(state, list):
        for part in state:
            yield from _places(part)
