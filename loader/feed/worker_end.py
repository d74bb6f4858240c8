"""Worker processes that end when the trainer has ended, however it did."""

from __future__ import annotations

import multiprocessing
import os
import threading

from gristmill.loader.feed.shared_memory import creating

_THREAD_NAME = "gristmill-worker-end"


def end_with_trainer() -> None:
    """Ends this process with its parent, if it is a worker process of Grain.

    Grain's workers wait for a trainer that was killed, and hold their memory meanwhile.
    """
    process = multiprocessing.current_process()
    parent = multiprocessing.parent_process()
    watched = any(thread.name == _THREAD_NAME for thread in threading.enumerate())
    if parent is None or watched or not process.name.startswith("grain-process"):
        return

    def wait() -> None:
        parent.join()
        with creating:
            os._exit(1)

    threading.Thread(target=wait, name=_THREAD_NAME, daemon=True).start()
