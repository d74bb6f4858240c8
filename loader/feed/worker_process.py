"""A worker process of Grain: how it is set up, and how it ends with the trainer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading

from gristmill.loader.feed.shared_memory import creating


def prepare_worker(*_: int) -> None:
    """Runs first in a worker."""
    # JAX may have read the environment already.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_trainer()


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
        with creating:
            os._exit(1)

    threading.Thread(target=wait, name=_THREAD_NAME, daemon=True).start()
