"""The end of a command's process, in spite of what is left in it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

_os_exit = os._exit


def exit_now(code: int) -> NoReturn:
    """Ends the process without waiting for threads that a runner may have left."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # It may be closed, or its reader gone.
            stream.flush()
    _os_exit(code)


@contextlib.contextmanager
def ending_in_time(*, patience_seconds: float = 5.0) -> Iterator[None]:
    """Ends the process some time after the body, whatever is left in it.

    Python waits without a limit for threads that are not daemons, for processes of
    multiprocessing, and for atexit functions. The module of a --map function, and the
    libraries that it uses, can leave all of these. They can call `os._exit` as well,
    which is an error before the end of the body.

    Args:
        patience_seconds: How long what is left may take.
    """
    process, code = os.getpid(), 1

    def exit_early(status: int) -> NoReturn:
        if os.getpid() == process:  # And not in one that was forked.
            _say(
                f"error: os._exit({status}) was called before the command was done\n"
                "  to do:    look for it in the --map function and the libraries that "
                "it uses; finished shards are kept"
            )
            exit_now(1)
        _os_exit(status)

    os._exit = exit_early
    try:
        yield
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise
    finally:
        os._exit = _os_exit
        # Ctrl-C means not to wait, and would print tracebacks.
        signal.signal(signal.SIGINT, lambda *_: exit_now(code))
        end = threading.Timer(patience_seconds, _end, args=(code,))
        end.daemon = True
        with contextlib.suppress(RuntimeError):  # There may be room for no thread.
            end.start()


def _end(code: int) -> None:
    left = [
        f"the thread {thread.name}"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    if multiprocessing := sys.modules.get("multiprocessing"):
        children = multiprocessing.active_children()
        left += [f"the process {child.pid}" for child in children]
    _say(
        "note: the command is done; its process was ended, as "
        f"{', '.join(left) or 'an atexit function'} did not end by itself"
    )
    exit_now(code)


def _say(text: str) -> None:
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr)
