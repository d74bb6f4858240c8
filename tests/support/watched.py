"""Functions that a test watches, or that something else interrupts."""

import functools
import itertools

from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.local import LocalStorage


def watched(monkeypatch, target, name, look, *, after=False):
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
    def called(*given, **options):
        if not after:
            look(*given, **options)
        found = true(*given, **options)
        if after:
            look(*given, **options)
        return found

    monkeypatch.setattr(target, name, called)


def failing(monkeypatch, target, name, error):
    """Lets a function fail."""

    def fail(*_, **__):
        raise error

    watched(monkeypatch, target, name, fail)


def meanwhile(monkeypatch, target, name, other, *, after=False):
    """Calls `other` when a function is called for the first time.

    Args:
        monkeypatch: Undoes it.
        target: The module, class or object that has the function.
        name: The function's name.
        other: What happens at this moment.
        after: Whether it happens when the function has done its work.
    """
    waiting = [other]

    def once(*_, **__):
        if waiting:
            waiting.pop()()

    watched(monkeypatch, target, name, once, after=after)


def at_storage(monkeypatch, operation, name, other, *, after=False, skip=0, times=1):
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

    def look(storage, path, *_, **__):
        if name in str(path) and skip <= next(count) < skip + times:
            other()

    for kind in (LocalStorage, GcsStorage):
        watched(monkeypatch, kind, operation, look, after=after)
