"""Dask workers as on several machines: processes that share a scheduler and the data.

Each has a working directory, a home and temporary files of its own. Two of them end by
SIGKILL, as machines that are lost, each in the middle of publishing a shard.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from tests.support.waiting import until

DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"

# Loaded by each worker before it takes any work. Whichever would first give a shard its
# name ends, and whichever would first send one to a bucket: a file that only one of
# them can make tells which. A worker that was chosen before might get no such work.
_LOST_MACHINES = """
import os, signal, sys

def end_as_first(token):
    try:
        os.close(os.open(token, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def watch(event, args):
    if event in ("os.link", "os.rename"):
        if ".array_record-" in os.path.basename(os.fsdecode(args[1])):
            end_as_first({folder!r} + "/lost-at-a-file")
    elif event == "http.client.send" and isinstance(args[1], (bytes, memoryview)):
        begin = bytes(args[1][:4096])
        if b".array_record-" in begin and not begin.startswith(b"GET "):
            end_as_first({folder!r} + "/lost-at-an-upload")

sys.addaudithook(watch)
"""
_WORKERS = 4


class DaskMachines:
    """A scheduler and its workers; use it in a `with` statement.

    Args:
        folder: For the directories of all processes.

    Attributes:
        address: Of the scheduler.
        workers: Its workers: one is lost at the first file, one at the first upload.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> DaskMachines:
        from distributed import Client

        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        try:
            self._start("scheduler", "--host", "127.0.0.1", "--port", str(port))
            self.workers = [self._start_worker() for _ in range(_WORKERS)]
            with Client(self.address, timeout=60) as client:
                client.wait_for_workers(_WORKERS, timeout=60)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start_worker(self) -> subprocess.Popen[bytes]:
        """Starts a worker of one thread that may be lost."""
        script = self._folder / "preload.py"
        script.write_text(_LOST_MACHINES.format(folder=str(self._folder)))
        options = ("--no-nanny", "--nthreads", "1", "--preload", str(script))
        return self._start("worker", self.address, *options)

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        """Starts a process of Dask in directories of its own."""
        place = self._folder / f"{kind}-{time.monotonic_ns()}"
        for name in ("home", "tmp", "work"):
            (place / name).mkdir(parents=True)
        log = self._stack.enter_context((place / "log").open("w"))
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options]
        process = self._stack.enter_context(
            subprocess.Popen(
                [*command, "--no-dashboard"],
                cwd=place / "work",
                env=os.environ
                | {
                    "DASK_TEMPORARY_DIRECTORY": str(place / "tmp"),
                    "HOME": str(place / "home"),
                    "PYTHONPATH": os.getcwd(),
                    "TMPDIR": str(place / "tmp"),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        )
        self._stack.callback(process.kill)
        return process

    def run(self, *transforms: Any) -> None:
        """Runs a chain of transforms, one element a partition."""
        options = (
            *(f"--runner={DASK}", f"--dask_client_address={self.address}"),
            "--dask_partition_size=1",
        )
        pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
        found: Any = pipeline
        for number, transform in enumerate(transforms):
            found = found | f"Stage{number}" >> transform
        result = pipeline.run()
        try:
            result.wait_until_finish()
        finally:
            # Beam leaves Dask's client open, which would miss its scheduler for ever.
            result.client.close()

    def check_lost(self, count: int) -> None:
        """Asserts that so many workers were killed, and no others."""
        until(lambda: len(self._ended()) >= count)
        assert self._ended() == [-signal.SIGKILL] * count

    def _ended(self) -> list[int]:
        """Returns the exit codes of the workers that have ended."""
        codes = (worker.poll() for worker in self.workers)
        return [code for code in codes if code is not None]
