"""The runs of one loader: processes that load, are stopped, killed, and resume."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil

from benchmarks.resume.protocol import Job, Numbers

ROOT = pathlib.Path(__file__).parents[2]
_WRITE_SECONDS = 900


@dataclasses.dataclass(kw_only=True)
class Came:
    """What a run gave.

    Attributes:
        steps: The numbers in each global batch, of all hosts.
        states: Files with the states of the hosts, by step.
        error: What the first host said that failed; None if all ended well.
        offered: Whether the loader has what the case needs.
        said: Warnings up to the first batch.
    """

    steps: list[Numbers]
    states: dict[int, list[str]]
    error: str | None = None
    offered: bool = True
    said: list[str] = dataclasses.field(default_factory=list)


def _environment(home: pathlib.Path) -> dict[str, str]:
    """Returns the variables of all processes of a loader."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "TMPDIR": str(home),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _variables(host: int, hosts: int, port: int) -> dict[str, str]:
    """Returns the variables that `torchrun` gives to a host, and LitData's own."""
    return {
        "RANK": str(host),
        "GLOBAL_RANK": str(host),
        "LOCAL_RANK": str(host),
        "WORLD_SIZE": str(hosts),
        "LOCAL_WORLD_SIZE": str(hosts),
        "NNODES": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Runner:
    """Starts the hosts of a loader.

    Args:
        loader: Name of the adapter.
        python: Of the environment that it runs in.
        work: A folder of its own.
        timeout_seconds: After which a run has failed.
    """

    def __init__(
        self,
        loader: str,
        python: pathlib.Path,
        work: pathlib.Path,
        timeout_seconds: float,
    ):
        self._loader, self._python, self._work = loader, python, work
        self._timeout_seconds = timeout_seconds
        self._runs = 0
        self._starter: subprocess.Popen[str] | None = None

    def write(self, shard_records: int, *, append: bool = False) -> None:
        """Writes data, as `benchmarks.resume.write` says.

        Raises:
            RuntimeError: It failed.
        """
        self._runs += 1
        folder = self._folder(0)
        said: dict[str, Any] = {
            "loader": self._loader,
            "write": str(self._work / "data"),
        }
        said["records"] = (shard_records, append)
        (folder / "host.json").write_text(json.dumps(said))
        started = self._start(folder, _variables(0, 1, _free_port()))
        psutil.wait_procs(started, timeout=_WRITE_SECONDS)
        if not (folder / "result.json").exists():
            log = (folder / "log").read_text(errors="replace")
            raise RuntimeError(f"{self._loader}: {log[-2000:]}")

    def _folder(self, host: int) -> pathlib.Path:
        folder = self._work / f"run-{self._runs}" / f"host-{host}"
        folder.mkdir(parents=True)
        return folder

    def load(
        self,
        jobs: Sequence[Job],
        *,
        states: Sequence[str] = (),
        save_at: Sequence[int] = (),
        stop: int | None = None,
        kill: bool = False,
    ) -> Came:
        """Runs a process for each host, and returns the batches of all.

        Args:
            jobs: One for each host.
            states: What to resume from, one of each host that was saved.
            save_at: Steps after which states are kept.
            stop: After how many steps to stop; None for the end of the epoch.
            kill: Whether to kill the hosts by SIGKILL some steps after the last state.
        """
        self._runs += 1
        folders: list[pathlib.Path] = []
        started: list[psutil.Process] = []
        port = _free_port()
        for job in jobs:
            folder = self._folder(job.host)
            work = {
                "loader": self._loader,
                "job": dataclasses.asdict(job),
                "states": [*states],
                "save_at": [*save_at],
                "stop": stop,
                "until_killed": kill,
            }
            (folder / "host.json").write_text(json.dumps(work))
            folders.append(folder)
            started += self._start(folder, _variables(job.host, len(jobs), port))
        late = None
        try:
            if kill:
                self._kill(started, folders)
            else:
                late = self._wait(started)
        finally:
            for process in started:
                _end_group(process)
        came = self._gather(folders, save_at, killed=kill)
        came.error = came.error or late
        return came

    def _start(
        self, folder: pathlib.Path, variables: dict[str, str]
    ) -> list[psutil.Process]:
        """Starts a host; returns its process, unless that has ended already."""
        if self._starter is None:
            (self._work / "home").mkdir(parents=True, exist_ok=True)
            self._starter = subprocess.Popen(
                [str(self._python), "-m", "benchmarks.resume.host", self._loader],
                cwd=ROOT,
                env=_environment(self._work / "home"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        said = json.dumps({"folder": str(folder), "variables": variables})
        self._starter.stdin.write(said + "\n")
        self._starter.stdin.flush()
        pid = int(self._starter.stdout.readline())
        try:
            return [psutil.Process(pid)]
        except psutil.NoSuchProcess:
            return []

    def _wait(self, started: Sequence[psutil.Process]) -> str | None:
        _, alive = psutil.wait_procs(started, timeout=self._timeout_seconds)
        return f"no end within {self._timeout_seconds:g} s" if alive else None

    def _kill(
        self, started: Sequence[psutil.Process], folders: Sequence[pathlib.Path]
    ) -> None:
        """Kills the hosts once they are ready."""
        until = time.monotonic() + self._timeout_seconds
        while not all((folder / "ready").exists() for folder in folders):
            if time.monotonic() > until or not all(p.is_running() for p in started):
                return  # It failed before: `_gather` says how.
            time.sleep(0.05)
        for process in started:
            process.kill()

    def _gather(
        self, folders: Sequence[pathlib.Path], save_at: Sequence[int], *, killed: bool
    ) -> Came:
        parts, results = [], []
        for folder in folders:
            parts.append(_steps_of(folder / "result.npz"))
            path = folder / "result.json"
            if path.exists():
                results.append(json.loads(path.read_text()))
            elif not (killed and (folder / "ready").exists()):
                log = (folder / "log").read_text(errors="replace").strip()
                results.append({"error": f"process ended: {log[-300:]}"})
        steps = [
            np.concatenate([part[step] for part in parts if step < len(part)])
            for step in range(max(map(len, parts), default=0))
        ]
        states = {
            step: [str(folder / f"state-{step}") for folder in folders]
            for step in save_at
            if all((folder / f"state-{step}").exists() for folder in folders)
        }
        errors = [each["error"] for each in results if each["error"]]
        return Came(
            steps=steps,
            states=states,
            error=_placeless(errors[0]) if errors else None,
            offered=all(each.get("offered", True) for each in results),
            said=[
                _placeless(line)
                for each in results[:1]
                for line in each.get("said", ())
            ],
        )

    def close(self) -> None:
        """Ends the process that starts hosts."""
        if self._starter is not None:
            self._starter.stdin.close()
            self._starter.wait()


def _placeless(text: str) -> str:
    """Returns a message without the folder of the measurement."""
    return re.sub(r"/\S*/resume-[^/\s]+/", "", text)


def _steps_of(path: pathlib.Path) -> list[Numbers]:
    if not path.exists():
        return []
    with np.load(path) as kept:
        sizes, numbers = kept["sizes"], kept["numbers"]
    return np.split(numbers, np.cumsum(sizes)[:-1]) if len(sizes) else []


def _free_port() -> int:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return int(any_socket.getsockname()[1])


def _end_group(process: psutil.Process) -> None:
    """Ends a host and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
