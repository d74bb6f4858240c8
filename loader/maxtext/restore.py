"""The state of MaxText's data: saved for any number of hosts, and restored.

States of other kinds are refused. From a state of other weights or batch sizes a run
continues with its own from the first step that no host has begun.

The state of Grain's own elastic iterator is a mere position, which fits every order.
That of `OrderedIterator` names its order, so that another one is refused.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import grain
from grain.experimental import ElasticIterator

from gristmill import loader
from gristmill.dataset.base.errors import InputError, StateMismatchError, some_of

_POSITION = "global_next_index"
_ORDER = "order"


class ElasticRecords(ElasticIterator):  # type: ignore[misc]  # Grain has no types.
    """The stand-in for Grain's `ElasticIterator`, with its arguments."""

    def __init__(self, batches: loader.GlobalBatches, *args: Any, **named: Any):
        super().__init__(*args, **named)
        self._batches = batches

    def __iter__(self) -> OrderedIterator:
        return OrderedIterator(super().__iter__(), self._batches)


class OrderedIterator(grain.DatasetIterator):  # type: ignore[misc]
    """The iterator that MaxText saves and restores, in one file for all hosts."""

    def __init__(self, positions: grain.DatasetIterator, batches: loader.GlobalBatches):
        super().__init__(positions)
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._parent)

    def get_state(self) -> dict[str, Any]:
        """Returns the position of all hosts and the order, as JSON values."""
        state: dict[str, Any] = self._parent.get_state()
        return state | {_ORDER: self._feed(state[_POSITION]).get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to a position of the same order, of any number of hosts.

        Raises:
            StateMismatchError: It is of another order; the error names the difference.
            InputError: It is not such a state.
        """
        if not isinstance(state, Mapping) or state.keys() != {_POSITION, _ORDER}:
            raise InputError(
                "not the state of an elastic iterator in gristmill's order",
                expected=f"{_POSITION} and {_ORDER}",
                got=f"{state!r:.200}",
                cure="continue with the settings of the run that wrote it",
            )
        feed = self._feed(0)
        feed.set_state(state[_ORDER])
        if feed.batches is not self._batches:
            raise StateMismatchError(
                "records were appended to a dataset since the state was written",
                expected=repr(self._batches),
                got=repr(feed.batches),
                cure="leave grain_use_elastic_iterator out where datasets grow, and "
                "begin the data anew",
            )
        self._parent.set_state({_POSITION: state[_POSITION]})

    def close(self) -> None:
        """Ends what reads ahead."""
        super().close()
        self._parent.close()

    def _feed(self, position: int) -> loader.Feed:
        """Returns a feed at the step of a position."""
        step = position // self._batches.batch_size
        return self._batches.feed(host=(0, 1), start_step=step)


ONE_FILE = "process_0.json"
"""The file of a state that all hosts share."""

_OF_ALL = "a state that all hosts share, of packed rows or of an elastic iterator"
_OF_HOSTS = "states of single hosts, which read records"


def explained_restore(for_restore: Callable[..., Any]) -> Any:
    """Returns MaxText's `for_restore` with an explanation for states that do not fit.

    It raises StateMismatchError where a checkpoint holds another kind of state than the
    iterator takes.
    """

    @functools.wraps(for_restore)
    def restore(manager: Any, step: int, iterator: Any, *others: Any) -> Any:
        checkpoint = manager.directory / str(step)
        files = sorted((checkpoint / "iter").glob("process_*.json"))
        states = [json.loads(file.read_text()) for file in files]
        if files:
            _check_kind(checkpoint, iterator, [file.name for file in files], states[0])
        change_batches(iterator if isinstance(iterator, list) else [iterator], states)
        return for_restore(manager, step, iterator, *others)

    return restore


def _check_kind(
    checkpoint: Any, iterator: Any, names: Sequence[str], state: Any
) -> None:
    kinds = loader.Feed, OrderedIterator, ElasticIterator
    one = isinstance(getattr(iterator, "local_iterator", None), kinds)
    grains = not any(places_of(state))
    if one == (ONE_FILE in names) and not grains:
        return
    cure = "continue with the data of that run"
    if grains:
        cure = "continue by MaxText alone, whose own pipeline wrote it"
    raise StateMismatchError(
        "the checkpoint holds the state of data that were read in another way",
        where=str(checkpoint / "iter"),
        expected=_OF_ALL if one else _OF_HOSTS,
        got=some_of(names) + (", in the order of Grain" if grains else ""),
        cure=f"{cure}; or begin the data anew, with another run_name and "
        f"load_full_state_path={checkpoint / 'items'}",
    )


# Of Grain's operations that may stop within a record: chunks of it, or what did not fit
# into a row. They read it again, and the records of their last row.
_IN_A_RECORD = frozenset({"next_index_in_buffer", "parent_state"})
_HELD_STEPS = 2


def change_batches(iterators: Iterable[Any], states: Iterable[Any]) -> None:
    """Lets MaxText's iterators continue from states of other weights or batch sizes.

    Up to the first step that no host has begun they have those of the states, and from
    there on their own. It restarts them, as they are about to be restored.

    Args:
        iterators: MaxText's data iterators of this host, that have `gristmill_readers`.
        states: What all hosts have saved.

    Raises:
        StateMismatchError: The states are of a mixture of other datasets.
    """
    places = [place for state in states for place in places_of(state)]
    for iterator in iterators:
        for reader in getattr(iterator, "gristmill_readers", ()):
            changed = changed_batches(reader.batches, places)
            if changed is not reader.batches:
                reader.batches = changed
                iterator.reset()


def changed_batches(
    own: loader.GlobalBatches,
    places: Sequence[tuple[dict[str, Any], int]],
) -> loader.GlobalBatches:
    """Returns batches that continue from states, and become a run's own.

    From the first step that no host has begun, they are the run's own. It returns `own`
    itself if nothing changes. Other differences are refused when a state is set.

    Args:
        own: The batches of the run, of one batch size and one set of weights.
        places: The states of feeds of all hosts and workers, and how many steps each
            has begun from there on.

    Raises:
        StateMismatchError: The states are of a mixture of other datasets.
    """
    if not places:
        return own
    state = places[0][0]
    names = tuple(entry["name"] for entry in state["phases"][-1]["datasets"])
    if own.names and names != own.names:
        raise StateMismatchError(
            "the checkpoint is of a mixture of other datasets",
            expected=", ".join(own.names),
            got=", ".join(names),
            cure="give the datasets of the checkpoint, in their order and by their "
            "names, 0 as the weight of those to leave out; to add one, begin the data "
            "anew, with another run_name and load_full_state_path=.../STEP/items",
        )
    step = max(feed["step"] + begun for feed, begun in places)
    return loader.continued_batches(own, state, step=step)


def places_of(state: Any, held: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields the states of feeds within the state of a Grain pipeline.

    Each comes with the number of steps that its reader has begun since that state.

    Args:
        state: A state of one of MaxText's iterators, or a part of it.
        held: Steps that the operation around it reads again, to continue in a record.
    """
    if isinstance(state, dict):
        if {"feed", "next_row"} <= state.keys():
            yield state["feed"], max(int(state["next_row"] > 0), held)
        elif {"version", "step", "phases"} <= state.keys():
            yield state, 0
        else:
            if not _IN_A_RECORD.isdisjoint(state):
                held = _HELD_STEPS
            for part in state.values():
                yield from places_of(part, held)
    elif isinstance(state, list):
        for part in state:
            yield from places_of(part, held)
