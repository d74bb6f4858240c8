"""Keeps threads out of C++ while the interpreter ends.

A thread that comes back from C++ to an interpreter that has begun to end is unwound by
CPython, which C++ answers with an abort of the whole process ("terminate called without
an active exception", https://github.com/python/cpython/issues/87135). So whoever calls
such code from a thread that does not hold the process up does it inside this gate: at
exit it lets out who is in, and nobody in any more.
"""

from __future__ import annotations

import atexit
import collections
import os
import threading
import time
from types import TracebackType

from gristmill.dataset.errors import StorageError


class ExitGate:
    """A context manager, for any number of threads at once.

    Inside it the interpreter does not end. Once it has begun to, a thread that comes
    waits for ever, and the process does not wait for it; the main thread, whose
    waiting would hold up the process, gets a `StorageError`.

    Args:
        patience_seconds: How long the end waits for those inside. Calls are short: this
            much is for one that is not.
    """

    def __init__(self, *, patience_seconds: float = 5.0) -> None:
        self._patience_seconds = patience_seconds
        # A count that needs no lock: appending and popping are atomic.
        self._inside: collections.deque[None] = collections.deque()
        self._closed = False
        atexit.register(self._close)
        # Threads do not go with a fork.
        os.register_at_fork(after_in_child=self._inside.clear)

    def __enter__(self) -> None:
        self._inside.append(None)
        if self._closed:
            self._inside.pop()
            if threading.current_thread() is threading.main_thread():
                raise StorageError(
                    "cannot read any more: the interpreter is ending",
                    cure="read before the program's last line, not in atexit functions",
                )
            threading.Event().wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside.pop()

    def _close(self) -> None:
        self._closed = True
        last = time.monotonic() + self._patience_seconds
        while self._inside and time.monotonic() < last:
            time.sleep(0.001)


exit_gate = ExitGate()
