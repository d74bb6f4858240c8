"""Worker processes of Grain: how they start, and end with the trainer."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading


def allow_unparsed_flags() -> None:
    """Lets Grain start worker processes in a script that never parses absl's flags.

    Grain reads a flag when it starts workers, which raises before flags are parsed.
    After this call flags have their defaults; a script can still parse them later.
    """
    flags = sys.modules.get("absl.flags")
    if flags is not None and not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


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
        os._exit(1)

    threading.Thread(target=wait, name=_THREAD_NAME, daemon=True).start()
