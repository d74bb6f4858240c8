"""Grain's elastic iterator over gristmill's order: one state for any number of hosts.

The state of Grain's own is a position alone, which fits every order. This one says of
which order it is, so that another one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grain
from grain.experimental import ElasticIterator

from gristmill import loader
from gristmill.dataset.base.errors import InputError, StateMismatchError

_POSITION = "global_next_index"
_ORDER = "order"


class ElasticRecords(ElasticIterator):  # type: ignore[misc]  # Grain has no types.
    """What MaxText makes instead of Grain's `ElasticIterator`, with its arguments."""

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
                cure="go on with the settings of the run that wrote it",
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
        """Returns a feed at the step up to which the order must be the same."""
        step = position // self._batches.batch_size
        return self._batches.feed(process_index=0, process_count=1, start_step=step)
