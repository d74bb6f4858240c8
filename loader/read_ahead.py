"""Takes items from an iterator in a thread of its own, some before they are wanted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 5


class ReadAhead(Generic[T]):
    """The items of an iterator, read ahead by a thread.

    Args:
        iterator: Used and closed by the thread alone, as it may be unsafe to share.
        depth: Most items that are ready at a time.
        close: Closes the iterator. It is called once.
        check: Raises if what feeds the iterator is dead.
        kill: Makes the iterator fail if it does not return.
    """

    def __init__(
        self,
        iterator: Iterator[T],
        *,
        depth: int,
        close: Callable[[], None],
        check: Callable[[], None],
        kill: Callable[[], None],
    ):
        self._iterator, self._depth = iterator, depth
        self._close, self._check, self._kill = close, check, kill
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._stop = self._ended = False
        self._error: Exception | None = None
        self._thread = threading.Thread(
            target=self._run, name="gristmill-feed", daemon=True
        )
        self._thread.start()

    def __len__(self) -> int:
        """How many items are ready."""
        return len(self._ready)

    def get(self) -> T:
        """Waits for the next item and returns it.

        Raises:
            StopIteration: There is none.
            Exception: What the iterator raised after the items before it.
        """
        with self._changed:
            while True:
                if not self._ended:
                    self._check()  # At every item: the sooner it is known the better.
                if self._ready:
                    self._changed.notify_all()
                    return self._ready.popleft()
                if self._error is not None:
                    raise self._error
                if self._ended:
                    raise StopIteration
                self._changed.wait(_POLL_SECONDS)

    def close(self) -> None:
        """Ends the thread and closes the iterator. It may be called again."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        if self._thread is threading.current_thread():
            return  # The garbage collector came by here: the thread is on its way out.
        self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive():
            self._kill()
            self._thread.join(_PATIENCE_SECONDS)

    def _run(self) -> None:
        try:
            for item in self._iterator:
                with self._changed:
                    while len(self._ready) >= self._depth and not self._stop:
                        self._changed.wait()
                    if self._stop:
                        break
                    self._ready.append(item)
                    self._changed.notify_all()
        except Exception as e:
            self._error = e
        finally:
            with self._changed:
                self._ended = True
                if self._stop:
                    self._ready.clear()
                self._changed.notify_all()
            self._close()
