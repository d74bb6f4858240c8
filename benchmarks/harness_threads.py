"""The needs of a worker with 1 to 12 threads: time, memory and local disk.

    python -m benchmarks.harness_threads

A process of Dataflow's workers has one vCPU, and makes as many shards at once as it has
harness threads (12 by default). Here a process with Beam imported, bound to
one core, makes the same shards with some numbers of threads, from a bucket and to one:
the server of the tests in another process, with the latency of a real one added to
every answer.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import c4_like
from gristmill.dataset.storage.lookup import storage_for
from tests.support.gcs_process import GcsProcess


def make_shards(output: str, threads: int, shards: int) -> dict[str, float]:
    """Converts gs://raw/* with threads of this process, and says what it took."""
    import apache_beam  # noqa: F401  As in a worker: it counts as import.

    from gristmill.transforms import ConversionJob, PlanOptions
    from gristmill.transforms.conversion.begin import begin_job
    from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks

    job = ConversionJob(
        inputs=("gs://raw/*",),
        output=output,
        name="texts",
        plan=PlanOptions(kind="num_shards", value=shards),
    )
    tasks = list(shard_tasks(begin_job(job).prepared))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cpu, begin = time.process_time(), time.perf_counter()
    with (
        concurrent.futures.ThreadPoolExecutor(threads) as pool,
        _DiskWatch(tempfile.gettempdir()) as disk,
    ):
        list(pool.map(make_shard, tasks))
    return {
        "threads": threads,
        "wall_seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "disk_bytes": disk.peak_bytes,
    }


class _DiskWatch(threading.Thread):
    """Looks at the size of all files below a directory, twenty times a second."""

    def __init__(self, directory: str):
        super().__init__(daemon=True)
        self._directory = directory
        self._ended = threading.Event()
        self.peak_bytes = 0

    def __enter__(self) -> _DiskWatch:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            size = sum(_sizes(self._directory))
            self.peak_bytes = max(self.peak_bytes, size)


def _sizes(directory: str) -> Iterator[int]:
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                yield os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue


def table(runs: Sequence[dict[str, Any]], shard_bytes: float) -> str:
    """Returns the runs as a table of Markdown."""
    lines = [
        f"| harness threads | MB/s | CPU s/GB | peak memory, MB | disk, in "
        f"shards of {shard_bytes / 1e6:.0f} MB of input |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for run in runs:
        total = run["input_bytes"]
        lines.append(
            f"| {run['threads']} | {total / 1e6 / run['wall_seconds']:.1f} "
            f"| {run['cpu_seconds'] / (total / 1e9):.1f} "
            f"| {run['memory_bytes'] / 1e6:.0f} "
            f"| {run['disk_bytes'] / shard_bytes:.1f} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark, and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 12])
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--shard-bytes", type=int, default=32_000_000)
    parser.add_argument("--latency-seconds", type=float, default=0.02)
    args = parser.parse_args(argv)
    runs = []
    with (
        tempfile.TemporaryDirectory() as work,
        GcsProcess("raw", "out", latency_seconds=args.latency_seconds) as server,
    ):
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        total = _upload(work, args.shards * args.shard_bytes)
        for number, threads in enumerate(args.threads):
            folder = pathlib.Path(work, f"tmp-{number}")
            folder.mkdir()
            call = [f"gs://out/{number}", threads, args.shards]
            done = subprocess.run(
                [sys.executable, "-m", __spec__.name, "--run", json.dumps(call)],
                env={**os.environ, "TMPDIR": str(folder)},
                stdout=subprocess.PIPE,
                check=True,
            )
            runs.append(json.loads(done.stdout) | {"input_bytes": total})
    print(table(runs, total / args.shards))
    return runs


def _upload(work: str, size_bytes: int) -> int:
    folder = pathlib.Path(work, "raw")
    c4_like.write_dataset(folder, size_bytes=size_bytes, files=4, seed=0)
    total = 0
    for path in sorted(folder.glob("*tfrecord*")):
        data = path.read_bytes()
        total += len(data)
        storage_for("gs://raw/x").write(f"gs://raw/{path.name}", data)
    return total


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(make_shards(*json.loads(sys.argv[2]))))
    else:
        main()
