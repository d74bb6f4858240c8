"""Errors of the data, which MaxText takes for the end of the data.

MaxText 0.2.5 would end its training with them as if all steps were done: without a
checkpoint, and with the exit code of success.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any


def raising_guard(guard: Callable[[Any], AbstractContextManager[Any]]) -> Any:
    """Returns MaxText's `loader_exception_guard` for the end of the data alone.

    Errors go on as they are, also those that elastic training takes.
    """

    @contextlib.contextmanager
    @functools.wraps(guard)
    def loader_exception_guard(config: Any) -> Iterator[None]:
        try:
            yield
        except StopIteration:
            with guard(config):
                raise

    return loader_exception_guard


def keeping_failures(give: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns `__next__` of MaxText's data iterator, which keeps the error it raises.

    Post-training drops it.
    """

    @functools.wraps(give)
    def next_batch(iterator: Any) -> Any:
        try:
            return give(iterator)
        except StopIteration:
            raise
        except Exception as e:
            iterator.gristmill_failure = e
            raise

    return next_batch


def raise_failure(iterators: Any) -> None:
    """Raises the error that one of MaxText's data iterators, or a list, has kept."""
    for iterator in iterators if isinstance(iterators, list) else [iterators]:
        failure = getattr(iterator, "gristmill_failure", None)
        if failure is not None:
            raise failure
