"""The hosts of the test of resuming: processes with a loader each.

    python -m benchmarks.resume.host LOADER

imports the adapter, then reads a line of JSON for each host, forks it, and prints its
process id: so the imports are made once. A host does what `host.json` in its folder
says, and leaves `result.npz` and `result.json` there; one writes the data. This runs in
the environment of the loader, and imports nothing of gristmill itself.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import pathlib
import re
import signal
import sys
import time
import traceback
import warnings
from typing import Any

import numpy as np

from benchmarks.resume.protocol import Job, NotOfferedError
from benchmarks.resume.write import write


class _Kept(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@dataclasses.dataclass(kw_only=True)
class Work:
    """What a host does.

    Attributes:
        loader: Name of the adapter.
        job: What to load.
        states: Files with the states to begin from; none to begin anew.
        save_at: Numbers of steps after which the state is kept, counted from where it
            begins.
        stop: Steps after which it ends; none for the end of the epoch.
        until_killed: After the last of `save_at` and some steps, say so, and read on.
    """

    loader: str
    job: Job
    states: list[str]
    save_at: list[int]
    stop: int | None = None
    until_killed: bool = False


_READ_ON_STEPS = 20


def run(work: Work, folder: pathlib.Path) -> dict[str, Any]:
    """Loads, and returns the result."""
    taken: list[np.ndarray] = []
    kept = _Kept()
    logging.getLogger().addHandler(kept)
    result: dict[str, Any] = {"error": None, "offered": True}
    module = importlib.import_module(f"benchmarks.resume.loaders.{work.loader}")
    loader = None
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            loader = module.Loader(work.job)
            if work.states:
                states = [pathlib.Path(path).read_bytes() for path in work.states]
                loader.restore(states)
            taken.append(np.asarray(loader.next()).ravel())
        result["said"] = [*kept.said, *(str(each.message) for each in warned)]
        while work.stop is None or len(taken) < work.stop:
            if len(taken) in work.save_at:
                saved = loader.state()
                (folder / f"state-{len(taken)}").write_bytes(saved)
            if work.until_killed and len(taken) == work.save_at[-1] + _READ_ON_STEPS:
                _keep(taken, folder)
                (folder / "ready").touch()
            if work.until_killed and len(taken) > work.save_at[-1] + _READ_ON_STEPS:
                time.sleep(0.02)
            taken.append(np.asarray(loader.next()).ravel())
    except StopIteration:
        pass
    except NotOfferedError as error:
        result |= {"offered": False, "error": str(error)}
    except Exception as error:  # What a user would see is the result.
        lines = [line for line in str(error).splitlines() if line.strip()]
        said = f"{type(error).__name__}: {' '.join(lines[:3])}"
        # Where an environment lies says nothing about the loader.
        result["error"] = re.sub(r"/\S*/(?=site-packages/)", "", said)[:600]
        traceback.print_exc()
    result.setdefault("said", [*kept.said])
    result["steps"] = len(taken)
    _keep(taken, folder)
    if loader is not None and hasattr(loader, "close"):
        loader.close()
    return result


def _keep(taken: list[np.ndarray], folder: pathlib.Path) -> None:
    sizes = np.array([len(each) for each in taken], np.int64)
    numbers = np.concatenate([np.zeros(0, np.int64), *taken]).astype(np.int64)
    np.savez(folder / "result.npz", sizes=sizes, numbers=numbers)


def _work(folder: pathlib.Path, variables: dict[str, str]) -> None:
    """Is a host, in a process and a session of its own."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    for mine, other in ((0, nothing), (1, log), (2, log)):
        os.dup2(other, mine)
    os.environ.update(variables)
    said = json.loads((folder / "host.json").read_text())
    if "write" in said:
        write(said["loader"], pathlib.Path(said["write"]), *said["records"])
        result: dict[str, Any] = {"error": None}
    else:
        job = said.pop("job")
        for name in ("folders", "weights"):
            job[name] = tuple(job[name])
        result = run(Work(job=Job(**job), **said), folder)
    (folder / "result.json").write_text(json.dumps(result))


def main() -> None:
    """Forks a host for each line."""
    importlib.import_module(f"benchmarks.resume.loaders.{sys.argv[1]}")
    # The kernel forgets hosts that ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        said = json.loads(line)
        pid = os.fork()
        if not pid:
            _work(pathlib.Path(said["folder"]), said["variables"])
            return
        print(pid, flush=True)


if __name__ == "__main__":
    main()
