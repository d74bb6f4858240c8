"""Items of an iterator, read ahead by a thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from gristmill.dataset.base.errors import InputError

T = TypeVar("T")

_POLL_SECONDS = 0.5
# How long to wait for an orderly end, and for the end after a failure or a kill.
_PATIENCE_SECONDS = 5
_LAST_SECONDS = 2


class ReadAhead(Generic[T]):
    """The items of an iterator, read ahead by a thread while fewer than `depth` wait.

    Args:
        iterator: Gives lists of items, those that come together. It is used and closed
            by the thread alone, as it may be unsafe to share.
        close: Closes the iterator. It is called once.
        check: Raises if a process after the iterator has died; its argument is how many
            seconds the caller of `get` has waited.
        kill: Makes the iterator fail if it does not return.
    """

    def __init__(
        self,
        iterator: Iterator[list[T]],
        *,
        depth: int,
        close: Callable[[], None],
        check: Callable[[float], None],
        kill: Callable[[], None],
    ):
        self._depth, self._check, self._kill = depth, check, kill
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._stop = self._ended = self._begun = self._dead = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run,
            # Only the thread holds these: they are freed when it ends.
            args=(iterator, close),
            name="gristmill-feed",
            daemon=True,
        )
        self._thread.start()

    def __len__(self) -> int:
        """How many items are ready."""
        return len(self._ready)

    def get(self) -> T:
        """Waits for the next item and returns it, as `next` does.

        It raises what the iterator raised after the items before it, and InputError if
        it was closed meanwhile.
        """
        asked_at = time.monotonic()
        with self._changed:
            while True:
                if self._stop:
                    raise InputError(
                        "the feed was closed while a batch was read",
                        cure="close the feed after the last batch, or make another "
                        "feed",
                    )
                if not self._ended:  # Even if items are ready: fail early.
                    self._check_life(time.monotonic() - asked_at)
                if self._ready:
                    item = self._ready.popleft()
                    # To wake the thread for nothing would cost more than the rest.
                    if len(self._ready) < self._depth:
                        self._changed.notify_all()
                    return item
                if self._error is not None:
                    raise self._error
                if self._ended:
                    raise StopIteration
                self._changed.wait(_POLL_SECONDS)

    def close(self) -> None:
        """Ends the thread and closes the iterator. It may be called again.

        It does not wait for an iterator that has not given its first item yet.
        """
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        if self._thread is threading.current_thread():
            return  # The garbage collector called this in the thread, which is ending.
        if self._begun:
            self._thread.join(_LAST_SECONDS if self._dead else _PATIENCE_SECONDS)
        if self._thread.is_alive():
            self._kill()
            self._thread.join(_LAST_SECONDS)
        self._error = None

    def _check_life(self, waited_seconds: float) -> None:
        try:
            self._check(waited_seconds)
        except Exception:
            self._dead = True
            raise

    def _run(self, iterator: Iterator[list[T]], close: Callable[[], None]) -> None:
        try:
            for items in iterator:
                with self._changed:
                    self._begun = True
                    while len(self._ready) >= self._depth and not self._stop:
                        self._changed.wait()
                    if self._stop:
                        break
                    self._ready.extend(items)
                    items.clear()  # From here on only the caller has them.
                    self._changed.notify_all()
        except BaseException as e:  # Panics of Rust code are not Exceptions.
            self._error = e
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            close()
            del iterator, close
