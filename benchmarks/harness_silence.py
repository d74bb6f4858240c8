"""Waits of a worker's threads for one that holds the interpreter's lock.

    python -m benchmarks.harness_silence

A worker of Beam answers its runner from a thread beside those that do the work: asked
for its progress, it is silent as long as one of these holds the lock. Here a thread
wakes up every few milliseconds while another one converts a file of a few large
records, indexes the shard and verifies it. The longest time between two wakes is the
silence. Each codec has a process of its own.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import c4_like
from gristmill.dataset.arrayrecord.compression import WriterOptions
from gristmill.dataset.formats.tfrecord.frame_layout import encode_frame
from gristmill.transforms import ConversionJob, PlanOptions
from gristmill.transforms.checking.verification import plan_verify
from gristmill.transforms.checking.verify_shard import verify_shard
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from gristmill.transforms.indexing.index_job import index_shard
from gristmill.transforms.indexing.plan_index import plan_index

CASES = (
    *(("zstd:3", 8), ("zstd:19", 8), ("brotli:6", 8), ("brotli:9", 8)),
    *(("zstd:3", 100), ("snappy", 100), ("uncompressed", 100)),
)
_UNIQUE_BYTES = 8_000_000
_WAKE_SECONDS = 0.005


class Silence(threading.Thread):
    """Wakes up again and again, and keeps the longest time between two wakes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self.longest_seconds = 0.0

    def run(self) -> None:
        """Wakes up until it is to end."""
        before = time.monotonic()
        while not self._ended.wait(_WAKE_SECONDS):
            now = time.monotonic()
            self.longest_seconds = max(self.longest_seconds, now - before)
            before = now

    def end(self) -> float:
        """Ends it, and returns the longest silence in seconds."""
        self._ended.set()
        self.join()
        return self.longest_seconds


def measure(compression: str, record_bytes: int, records: int) -> dict[str, float]:
    """Returns seconds and the longest silence of each step, in this process."""
    found: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        silence = Silence()
        silence.start()
        begin = time.perf_counter()
        result = work()
        found[f"{name}_seconds"] = time.perf_counter() - begin
        found[f"{name}_silence_seconds"] = silence.end()
        return result

    with tempfile.TemporaryDirectory() as directory:
        source, output = f"{directory}/in.tfrecord", f"{directory}/out"
        _write_records(source, record_bytes, records)
        job = ConversionJob(
            inputs=(source,),
            output=output,
            name="large",
            plan=PlanOptions(kind="num_shards", value=1),
            writer=WriterOptions(compression=compression),
        )
        prepared = begin_job(job).prepared
        (task,) = shard_tasks(prepared)
        result = timed("convert", functools.partial(make_shard, task))
        commit_shards([job], [result])
        (shard,) = plan_verify(output).tasks
        check = timed("verify", functools.partial(verify_shard, shard))
        if check.findings or check.records != records:
            raise RuntimeError(f"not what was written: {check}")
        pathlib.Path(directory, "old").mkdir()
        shutil.copy(f"{output}/{shard.path}", f"{directory}/old/")
        (found_file,) = plan_index([f"{directory}/old"])
        timed("index", functools.partial(index_shard, found_file))
    return found


def _write_records(path: str, record_bytes: int, records: int) -> None:
    size, parts = 0, []
    for part in c4_like.generate_records(seed=1):
        parts.append(part)
        size += len(part)
        if size >= min(record_bytes, _UNIQUE_BYTES):
            break
    # Codecs look a few megabytes back at most: what comes again later is new to them.
    record = (b"".join(parts) * (record_bytes // size + 1))[:record_bytes]
    with open(path, "wb") as file:
        for _ in range(records):
            file.write(encode_frame(record))


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Returns the runs as a table of Markdown."""
    lines = [
        "| codec | records | time a record | converting | indexing | verifying |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for run in runs:
        seconds = run["convert_seconds"] / run["records"]
        silences = [
            f"{run[f'{step}_silence_seconds']:.2f} s"
            for step in ("convert", "index", "verify")
        ]
        lines.append(
            f"| {run['compression']} | {run['record_bytes'] / 1e6:.0f} MB "
            f"| {seconds:.1f} s | {' | '.join(silences)} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark, and prints its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=2, help="in each file")
    parser.add_argument("--codecs", nargs="+", help="such as zstd:19=8 (megabytes)")
    args = parser.parse_args(argv)
    cases: Sequence[tuple[str, int]] = CASES
    if args.codecs:
        pairs = [codec.split("=") for codec in args.codecs]
        cases = [(codec, int(megabytes)) for codec, megabytes in pairs]
    runs = []
    for codec, megabytes in cases:
        call = [codec, megabytes * 1_000_000, args.records]
        this = [sys.executable, "-m", "benchmarks.harness_silence", "--run"]
        done = subprocess.run(
            [*this, json.dumps(call)], stdout=subprocess.PIPE, check=True
        )
        names = ("compression", "record_bytes", "records")
        asked = dict(zip(names, call, strict=True))
        runs.append(asked | json.loads(done.stdout))
        print(table(runs[-1:]).splitlines()[-1], flush=True)
    return runs


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(measure(*json.loads(sys.argv[2]))))
    else:
        print(table(main()))
