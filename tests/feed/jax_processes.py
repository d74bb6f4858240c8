"""Processes that are one JAX job together, on CPU devices and over loopback."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

from tests.support.distributions import ROOT

TIMEOUT_SECONDS = 240


@contextlib.contextmanager
def started(command, folder, *, processes=1, devices):
    """Starts a Python command in processes that share devices; kills them at the end.

    Args:
        command: Arguments of the interpreter. `{job}` becomes HOST:PORT,COUNT,INDEX:
            where the first process listens, how many there are, and which one it is.
        folder: Where to write what they say.
        processes: How many.
        devices: How many CPU devices all of them have together.

    Yields:
        The processes, each with the file of its output.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    each = devices // processes
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={each}",
    }
    running = []
    try:
        for number in range(processes):
            job = f"127.0.0.1:{port},{processes},{number}"
            said = folder / f"said-{number}-of-{processes}.txt"
            with said.open("wb") as out:
                process = subprocess.Popen(
                    [sys.executable, *(part.replace("{job}", job) for part in command)],
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            running.append((process, said))
        yield running
    finally:
        for process, _ in running:
            # The group: also the workers of a process that is gone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(command, folder, *, processes=1, devices):
    """Runs a command as `started` does, to its end; returns what each has said."""
    end = time.monotonic() + TIMEOUT_SECONDS
    with started(command, folder, processes=processes, devices=devices) as running:
        for process, _ in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, end - time.monotonic()))
        codes = [process.poll() for process, _ in running]
    said = [path.read_text() for _, path in running]
    assert codes == [0] * processes, "\n---\n".join(said)
    return said
