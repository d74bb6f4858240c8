"""The hosts of a run: processes that load, keep their state, and end or are killed.

They are forked by a process that has imported the loader, so that the imports are made
once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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
from collections.abc import Sequence

import numpy as np

from benchmarks.resume.protocol import NotOfferedError, Numbers

_READ_ON_STEPS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What all hosts of a run do.

    Attributes:
        states: To begin from, one of each host that was saved; none to begin anew.
        save_at: Steps after which the state is kept.
        stop: Steps after which a host ends; None for the end of the epoch.
        kill: Whether hosts are killed by SIGKILL some steps after they kept the state.
    """

    states: Sequence[bytes] = ()
    save_at: int | None = None
    stop: int | None = None
    kill: bool = False


@dataclasses.dataclass(kw_only=True)
class Came:
    """What a run gave, of one host or of all.

    Attributes:
        steps: The numbers in each batch.
        states: The states that were kept.
        error: What the first host said that failed; None if all ended well.
        offered: Whether the loader has what the case needs.
        said: Warnings up to the first batch.
    """

    steps: list[Numbers] = dataclasses.field(default_factory=list)
    states: list[bytes] = dataclasses.field(default_factory=list)
    error: str | None = None
    offered: bool = True
    said: list[str] = dataclasses.field(default_factory=list)


class _Kept(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def _load(adapter, job, plan, path):
    """Loads as a host, and leaves what came in a file."""
    came, kept = Came(), _Kept()
    logging.getLogger().addHandler(kept)
    came.said, loader = kept.said, None
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            loader = adapter.Loader(job)
            if plan.states:
                loader.restore(plan.states)
            came.steps.append(np.ravel(loader.next()))
        came.said = [*kept.said, *(str(each.message) for each in warned)]
        while plan.stop is None or len(came.steps) < plan.stop:
            if len(came.steps) == plan.save_at:
                came.states.append(loader.state())
            if plan.kill and len(came.steps) >= plan.save_at + _READ_ON_STEPS:
                _keep(came, path)
                time.sleep(0.02)
            came.steps.append(np.ravel(loader.next()))
    except StopIteration:
        pass
    except NotOfferedError as error:
        came.offered, came.error = False, str(error)
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


def load(
    adapter,
    jobs,
    plan,
    folder,
    timeout_seconds,
):
    """Runs a host for each job, and returns the batches of all.

    Args:
        adapter: The module of the loader.
        jobs: One for each host.
        plan: What they do.
        folder: A new one, for what they leave.
        timeout_seconds: After which the run has failed.
    """
    folder.mkdir(parents=True)
    port = _free_port()
    paths = [folder / f"host-{job.host}" for job in jobs]
    hosts = [
        fork(
            functools.partial(_load, adapter, job, plan, path),
            path.with_suffix(".log"),
            variables(job.host, len(jobs), port),
        )
        for job, path in zip(jobs, paths, strict=True)
    ]
    until, alive = time.monotonic() + timeout_seconds, hosts
    late = None
    while alive and not (plan.kill and all(path.exists() for path in paths)):
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
    return Came(
        steps=[
            np.hstack([c.steps[step] for c in each if step < len(c.steps)]).astype(int)
            for step in range(max(len(came.steps) for came in each))
        ],
        states=[state for came in each for state in came.states],
        error=errors[0] and _placeless(errors[0]),
        offered=all(came.offered for came in each),
        said=[_placeless(line) for line in each[0].said],
    )


def _left(path):
    """Returns the result that a host has left."""
    if not path.exists():
        log = path.with_suffix(".log").read_text(errors="replace").strip()
        return Came(error=f"process ended: {log[-300:]}")
    came = pickle.loads(path.read_bytes())
    return came


def _placeless(text):
    """Returns a message without the folder of the measurement."""
    return re.sub(r"/\S*/resume-[^/\s]+/", "", text)


def _free_port():
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return int(any_socket.getsockname()[1])
