"""Hosts as processes of their own, each with its feed of the same batches."""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
from typing import Any

from gristmill import loader
from gristmill.loader.feed.step_reads import Decode


def run_hosts(
    batches: loader.GlobalBatches,
    state: dict[str, Any],
    hosts: int,
    stop: int,
    decode: Decode | None = None,
) -> tuple[list[list[Any]], dict[str, Any]]:
    """Runs real processes, one a host, from a state up to a step.

    Returns what each host was given at each step, and the state of all of them.
    """
    with contextlib.ExitStack() as stack:
        running = []
        for host in range(hosts):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.hosts"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            running.append(stack.enter_context(process))
            given = batches, state, host, hosts, stop, decode
            process.stdin.write(pickle.dumps(given))
            process.stdin.close()
        done = [pickle.loads(process.stdout.read()) for process in running]
    assert [process.returncode for process in running] == [0] * hosts
    (written,) = {json.dumps(state) for _, state in done}
    steps = zip(*(read for read, _ in done), strict=True)
    return list(map(list, steps)), json.loads(written)


def main() -> None:
    """Runs one of the processes."""
    given = pickle.load(sys.stdin.buffer)
    batches, state, host, hosts, stop, decode = given
    feed = batches.feed(decode=decode, host=(host, hosts))
    feed.set_state(state)
    read = []
    while feed.get_state()["step"] < stop and (batch := next(feed, None)) is not None:
        read.append(batch)
    state = json.loads(json.dumps(feed.get_state()))
    feed.close()
    sys.stdout.buffer.write(pickle.dumps((read, state)))


if __name__ == "__main__":
    main()
