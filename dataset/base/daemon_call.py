"""Calls in the background that do not keep the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def daemon_call(call: Callable[[], T], *, thread_name: str) -> Future[T]:
    """Calls a function in a daemon thread of its own; returns its result or error."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as e:
            future.set_exception(e)

    threading.Thread(target=run, name=thread_name, daemon=True).start()
    return future
