"""Restores states of the data that are read, and refuses those of other kinds."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from gristmill import loader
from gristmill.dataset.base.errors import StateMismatchError, some_of
from gristmill.loader.maxtext.elastic import OrderedIterator
from gristmill.loader.maxtext.options import PREFIX, Order
from gristmill.loader.maxtext.run_changes import change_batches, places_of

ONE_FILE = "process_0.json"
"""The file of a state that all hosts share."""

_OF_ALL = "a state that all hosts share, of packed rows or of an elastic iterator"
_OF_HOSTS = "states of single hosts, which read records"


def explained_restore(for_restore: Callable[..., Any], order: Order) -> Any:
    """Returns MaxText's `for_restore`, which says what to do about other states."""

    @functools.wraps(for_restore)
    def restore(manager: Any, step: int, iterator: Any, *others: Any) -> Any:
        checkpoint = manager.directory / str(step)
        check_kind(checkpoint, iterator, order)
        change_batches(
            iterator if isinstance(iterator, list) else [iterator],
            (file.read_text() for file in _files(checkpoint)),
        )
        return for_restore(manager, step, iterator, *others)

    return restore


def check_kind(checkpoint: Any, iterator: Any, order: Order) -> None:
    """Checks that a checkpoint holds the kind of state that an iterator takes.

    Args:
        checkpoint: The directory of the step, a path.
        iterator: MaxText's data iterator, or a list of them.
        order: The order of the records that are read.

    Raises:
        StateMismatchError: It holds states of another kind only.
    """
    files = _files(checkpoint)
    names = [file.name for file in files]
    one = isinstance(getattr(iterator, "local_iterator", None), _kinds_of_one_file())
    if not names:
        return
    if one != (ONE_FILE in names):
        expected, got = _OF_ALL if one else _OF_HOSTS, some_of(names)
        cure = "go on with the data of that run"
        if (found := _order_of(files[0].read_text())) != order:
            cure += f" and {PREFIX}order={found}"
    elif not one and (found := _order_of(files[0].read_text())) != order:
        expected, got = f"the order of {order}", f"the order of {found}"
        cure = f"go on with {PREFIX}order={found}"
    else:
        return
    raise StateMismatchError(
        "the checkpoint holds the state of data that were read in another way",
        where=str(checkpoint / "iter"),
        expected=expected,
        got=got,
        cure=f"{cure}; or begin the data anew, with another run_name and "
        f"load_full_state_path={checkpoint / 'items'}",
    )


def _files(checkpoint: Any) -> list[Any]:
    return sorted((checkpoint / "iter").glob("process_*.json"))


def _order_of(state: str) -> Order:
    """Returns whose order wrote a state: only gristmill's has the state of a feed."""
    return "gristmill" if any(places_of(json.loads(state))) else "grain"


def _kinds_of_one_file() -> tuple[type, ...]:
    from grain.experimental import ElasticIterator

    return (loader.Feed, OrderedIterator, ElasticIterator)
