"""The hosts of a run: processes that load, keep their state, and end or are killed.

They are forked by a process that has imported the loader, so that the imports are made
once.
"""

import contextlib
import functools
import itertools
import logging
import os
import pickle
import re
import signal
import socket
import sys
import time
import traceback
import warnings

import numpy as np

_READ_ON_STEPS = 20


class Came:
    """What a run gave, of one host or of all.

    Attributes:
        steps: The numbers in each batch.
        states: The states that were kept.
        error: What the first host said that failed; None if all ended well.
        said: Warnings up to the first batch.
    """

    def __init__(self, error=None):
        self.error = error
        self.steps, self.states, self.said = [], [], []


class _Kept(logging.Handler):
    """Keeps what is logged as a warning, and what `warnings` shows."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def _load(adapter, job, path, *, states=(), save_at=None, stop=None, kill=False):
    """Loads as a host, and leaves what came in a file; see `load`."""
    came, kept = Came(), _Kept()
    logging.getLogger().addHandler(kept)
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_: kept.said.append(str(message))
    came.said, loader = kept.said, None
    try:
        loader = adapter.Loader(job)
        if states:
            loader.restore(states)
        came.steps.append(np.ravel(loader.next()))
        kept.said = []  # What is said later does not count.
        while stop is None or len(came.steps) < stop:
            if len(came.steps) == save_at:
                came.states.append(loader.state())
            if kill and len(came.steps) >= save_at + _READ_ON_STEPS:
                _keep(came, path)
                time.sleep(0.02)
            came.steps.append(np.ravel(loader.next()))
    except StopIteration:
        pass
    except Exception as error:  # What a user would see is the result.
        lines = [line for line in str(error).splitlines() if line.strip()]
        said = f"{type(error).__name__}: {' '.join(lines[:3])}"
        # Where an environment lies says nothing about the loader.
        came.error = re.sub(r"/\S*/(?=site-packages/)", "", said)[:600]
        traceback.print_exc()
    _keep(came, path)
    if hasattr(loader, "close"):
        loader.close()


def _keep(came, path):
    if not path.exists():
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(pickle.dumps(came))
        unfinished.rename(path)


def fork(work, log, variables):
    """Starts work in a process and a session of its own; returns the process's id."""
    if pid := os.fork():
        return pid
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(log, os.O_WRONLY | os.O_CREAT)
    for mine, other in ((0, nothing), (1, written), (2, written)):
        os.dup2(other, mine)
    os.environ.update(variables)
    work()
    sys.exit()  # As any program: what was imported cleans up behind it.


def variables(host=0, hosts=1, port=0):
    """Returns the variables that `torchrun` gives to a host, and LitData's own."""
    return {
        **dict.fromkeys(("RANK", "GLOBAL_RANK", "LOCAL_RANK"), str(host)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(hosts)),
        "NNODES": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port or _free_port()),
    }


def load(adapter, jobs, folder, timeout_seconds, *, kill=False, **plan):
    """Runs a host for each job, and returns the batches of all.

    Args:
        adapter: The module of the loader.
        jobs: One for each host.
        folder: A new one, for what they leave.
        timeout_seconds: After which the run has failed.
        kill: Whether hosts are killed by SIGKILL some steps after they kept the state.
        **plan: `states` to begin from, one of each host that was saved; after how many
            steps to keep the state (`save_at`), and to `stop`, or at the epoch's end.
    """
    folder.mkdir(parents=True)
    port = _free_port()
    paths = [folder / f"host-{job.host}" for job in jobs]
    hosts = [
        fork(
            functools.partial(_load, adapter, job, path, kill=kill, **plan),
            path.with_suffix(".log"),
            variables(job.host, len(jobs), port),
        )
        for job, path in zip(jobs, paths, strict=True)
    ]
    until, alive = time.monotonic() + timeout_seconds, hosts
    late = None
    while alive and not (kill and all(path.exists() for path in paths)):
        if time.monotonic() > until:
            late = f"no end within {timeout_seconds:g} s"
            break
        time.sleep(0.02)
        alive = [host for host in alive if not os.waitpid(host, os.WNOHANG)[0]]
    for host in hosts:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(host, signal.SIGKILL)  # With whatever it has started.
    for host in alive:
        os.waitpid(host, 0)
    each = [_left(path) for path in paths]
    errors = [came.error for came in each if came.error] + [late]
    came = Came(errors[0] and _placeless(errors[0]))
    came.said = [_placeless(line) for line in each[0].said]
    came.states = [state for host in each for state in host.states]
    steps = itertools.zip_longest(*(host.steps for host in each), fillvalue=())
    came.steps = [np.hstack(rows).astype(int) for rows in steps]
    return came


def _left(path):
    """Returns the result that a host has left."""
    if not path.exists():
        log = path.with_suffix(".log").read_text(errors="replace").strip()
        return Came(f"process ended: {log[-300:]}")
    return pickle.loads(path.read_bytes())


def _placeless(text):
    """Returns a message without the folder of the measurement."""
    return re.sub(r"/\S*/resume-[^/\s]+/", "", text)


def _free_port():
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return int(any_socket.getsockname()[1])
