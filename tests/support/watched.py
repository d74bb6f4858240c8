"""Functions that a test watches, or that something else interrupts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.local import LocalStorage


def watched(
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
    name: str,
    look: Callable[..., object],
    *,
    after: bool = False,
) -> None:
    """Calls `look` with the arguments of each call of a function.

    Args:
        monkeypatch: Undoes it.
        target: The module, class or object that has the function.
        name: The function's name.
        look: What it raises, the function raises.
        after: Whether it is called when the function has done its work.
    """
    true = getattr(target, name)

    @functools.wraps(true)
    def called(*given: Any, **options: Any) -> Any:
        if not after:
            look(*given, **options)
        found = true(*given, **options)
        if after:
            look(*given, **options)
        return found

    monkeypatch.setattr(target, name, called)


def failing(
    monkeypatch: pytest.MonkeyPatch, target: Any, name: str, error: BaseException
) -> None:
    """Lets a function fail."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    watched(monkeypatch, target, name, fail)


def meanwhile(
    monkeypatch: pytest.MonkeyPatch,
    target: Any,
    name: str,
    other: Callable[[], object],
    *,
    after: bool = False,
) -> None:
    """Calls `other` when a function is called for the first time.

    Args:
        monkeypatch: Undoes it.
        target: The module, class or object that has the function.
        name: The function's name.
        other: What happens at this moment.
        after: Whether it happens when the function has done its work.
    """
    waiting = [other]

    def once(*_: Any, **__: Any) -> None:
        if waiting:
            waiting.pop()()

    watched(monkeypatch, target, name, once, after=after)


def at_storage(
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    name: str,
    other: Callable[[], object],
    *,
    after: bool = False,
    skip: int = 0,
    times: int = 1,
) -> None:
    """Calls `other` when a storage's operation meets a file of some name.

    Nothing real comes just between two operations: a crash, another command, a fault.

    Args:
        monkeypatch: Undoes it.
        operation: A method of storages.
        name: Part of its path; "" is any.
        other: What happens at this moment. What it raises, the operation raises.
        after: Whether it happens when the operation has done its work.
        skip: How many such operations pass before.
        times: At how many it happens.
    """
    count = itertools.count()

    def look(storage: object, path: object, *_: Any, **__: Any) -> None:
        if name in str(path) and skip <= next(count) < skip + times:
            other()

    for kind in (LocalStorage, GcsStorage):
        watched(monkeypatch, kind, operation, look, after=after)
