"""The one process of a run of tests that imports TensorFlow.

That takes seconds and 500 MB, which each process of the tests would need.
"""

import contextlib
import functools
import importlib
import os
import pathlib
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Client, Listener

from tests.support import shared
from tests.support.waiting import until

ROOT = pathlib.Path(__file__).parents[2]
_LONGEST_RUN_SECONDS = 4 * 3600


def with_tensorflow(function):
    """Has a function of a module of tests run in that process.

    What it takes and returns is pickled. It does not see changes of the environment.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        with Client(str(shared.made_once("tensorflow", _start) / "socket")) as server:
            server.send((function.__module__, function.__qualname__, args, kwargs))
            result, error = server.recv()
        if error is not None:
            raise error
        return result

    return call


def _start(folder):
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # It serves others when this process has ended.
    )
    until((folder / "socket").exists)


def _serve(folder):
    """Calls functions one after another, until the folder is gone."""
    threading.Thread(target=_end_with, args=(folder,), daemon=True).start()
    with Listener(str(folder / "made"), backlog=64) as listener:
        (folder / "made").rename(folder / "socket")  # It listens.
        while True:
            # A test that was ended waits no more.
            with contextlib.suppress(OSError, EOFError), listener.accept() as client:
                client.send(_called(*client.recv()))


def _called(module, name, args, kwargs):
    try:
        function = getattr(importlib.import_module(module), name).__wrapped__
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


def _end_with(folder):
    # A run that was killed leaves its folder.
    stop = time.monotonic() + _LONGEST_RUN_SECONDS
    while folder.exists() and time.monotonic() < stop:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    _serve(pathlib.Path(sys.argv[1]))
