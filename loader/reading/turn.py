"""A lock that a thread keeps for a while when it comes back for it again and again.

Threads that hand a lock on after each small piece of work spend more time on waking
each other than on the work: here whoever waits leaves it to its owner for a slice of
time, unless the owner does something else meanwhile.
"""

from __future__ import annotations

import threading
import time

# Long beside the time that a thread takes to wake up, short for who waits.
_SLICE_SECONDS = 0.004
# An owner that is not back by then does something else.
_AWAY_SECONDS = 0.0001
# Each time that somebody looks, the owner waits for the interpreter's lock.
_GLANCE_SECONDS = 0.001


class Turn:
    """Who of several threads does small pieces of work at the moment.

        turn.wait()
        with turn.lock:
            work()
            turn.keep()

    `wait` and `keep` are courtesy: the lock alone keeps others out, and as it is C's
    own, Ctrl-C cannot leave it locked.

    Attributes:
        lock: Is held during a piece of work.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # One of those that wait looks at the owner, the others wait for that one.
        self._line = threading.Lock()
        self._owner = 0
        self._left = 0.0

    def wait(self) -> None:
        """Waits until the owner's slice is over, if that is another thread."""
        if self._owner == threading.get_ident():
            return
        with self._line:
            slice_ends = time.monotonic() + _SLICE_SECONDS
            while (now := time.monotonic()) < slice_ends:
                if not self.lock.locked() and now - self._left >= _AWAY_SECONDS:
                    return
                time.sleep(_GLANCE_SECONDS)

    def keep(self) -> None:
        """Makes this thread the owner, at the end of its work."""
        self._owner = threading.get_ident()
        self._left = time.monotonic()
