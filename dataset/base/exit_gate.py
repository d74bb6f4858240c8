"""The gate that keeps threads out of C++ while the interpreter ends.

A thread that comes back from C++ to an interpreter that has begun to end is unwound by
CPython, which C++ answers with an abort of the whole process ("terminate called without
an active exception", https://github.com/python/cpython/issues/87135). So code
that calls C++ in a daemon thread does so inside this gate. At exit the gate waits for
the threads inside and lets no other thread in.
"""

from __future__ import annotations

import atexit
import collections
import os
import threading
import time

from gristmill.dataset.base.errors import StorageError


class ExitGate:
    """A context manager, for any number of threads at once.

    The interpreter does not end while a thread is inside. Once it has begun to end, a
    daemon thread that enters blocks forever, which the process does not wait for; the
    main thread gets a `StorageError` instead.

    Args:
        patience_seconds: How long to wait at exit for the threads inside. Calls are
            short; this limits one that hangs.
    """

    def __init__(self, *, patience_seconds: float = 5.0) -> None:
        self._patience_seconds = patience_seconds
        # Counts without a lock: append and pop are atomic.
        self._inside: collections.deque[None] = collections.deque()
        self._closed = False
        atexit.register(self._close)
        # A forked process has none of these threads.
        os.register_at_fork(after_in_child=self._inside.clear)

    def __enter__(self) -> None:
        self._inside.append(None)
        if self._closed:
            self._inside.pop()
            if threading.current_thread() is threading.main_thread():
                raise StorageError(
                    "cannot read any more: the interpreter is ending",
                    cure="read before the program ends; atexit functions cannot read",
                )
            threading.Event().wait()

    def __exit__(self, *_: object) -> None:
        self._inside.pop()

    def _close(self) -> None:
        self._closed = True
        last = time.monotonic() + self._patience_seconds
        while self._inside and time.monotonic() < last:
            time.sleep(0.001)


exit_gate = ExitGate()
