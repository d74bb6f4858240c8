"""The threads and processes that a block starts, and no others of this process.

Tests before may have left some that end, or start others, at any time: what all of the
process has says nothing about the block.
"""

import contextlib
import multiprocessing.process
import threading
from unittest import mock

from tests.support.waiting import until


class Started:
    """What a block has started so far, directly or in threads of its own.

    Attributes:
        threads: In the order of their start, ended ones too.
        processes: Those of `multiprocessing`.
    """

    def __init__(self):
        self.threads: list[threading.Thread] = []
        self.processes: list[multiprocessing.process.BaseProcess] = []

    def alive(self):
        """Returns those that have not ended."""
        return [each for each in (*self.threads, *self.processes) if each.is_alive()]

    def wait_until_ended(self):
        """Waits for what was told to end; fails where something goes on."""
        until(lambda: not self.alive())


@contextlib.contextmanager
def started():
    """Gives what this thread starts from here on, until the block ends."""
    found, first = Started(), threading.current_thread()

    def noting(kind, into):
        start = kind.start

        def start_and_note(each):
            if threading.current_thread() in (first, *found.threads):
                into.append(each)
            start(each)

        return mock.patch.object(kind, "start", start_and_note)

    with (
        noting(threading.Thread, found.threads),
        noting(multiprocessing.process.BaseProcess, found.processes),
    ):
        yield found
