"""Writing shards, and reading them in random order: gristmill and MosaicML Streaming.

    python -m benchmarks.streaming --streaming PYTHON \
        --json benchmarks/results/streaming.json \
        --markdown docs/performance/streaming.md
    python -m benchmarks.streaming --streaming PYTHON --quick

PYTHON is that of an environment with `mosaicml-streaming`. Both write the records of
the same TFRecord files, which a loop reads unchecked, in one process: gristmill by
`dataset.Writer`. The imports do not count.
MosaicML's shards are compressed as a whole, and are decompressed to the local disk
before they are read: so readers have shards that are not compressed, gristmill's among
them, and gristmill's of compressed records beside. Readers are processes of their own,
measured once they are warm: `StreamingDataset` for an epoch, the others for some
seconds. Its threads take a lock for each record, and wait for each other if they run on
several processors, so it is bound to one as well. Rounds alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import c4_like, figures
from benchmarks.contest import (
    describe_environment,
    describe_machine,
    parse_contest,
    say,
    version_in,
    write_reports,
)
from benchmarks.peers import read_frames_unchecked
from benchmarks.rounds import Run, Spread, by_round, run_process, take_turns
from gristmill import loader
from gristmill.dataset import Writer, WriterOptions

_FILES = 4
_BATCH = 256
_WARM_BATCHES = 8
_SHARD_BYTES = 64 << 20  # As MDSWriter has.
_OURS = {
    "writer": WriterOptions(compression="zstd:3", group_size=1),
    "writer_16": WriterOptions(compression="zstd:3", group_size=16),
    "writer_plain": WriterOptions(compression="uncompressed", group_size=1),
}
LABELS = {
    "writer": "`Writer`, zstd:3, every record checked",
    "writer_16": "the same, 16 records a chunk",
    "writer_plain": "`Writer`, not compressed, every record checked",
    "mds_zstd": "`MDSWriter`, zstd:3, a hash of each shard",
    "mds": "`MDSWriter`, not compressed",
    "feed": "`batches.feed`, global shuffle, zstd:3",
    "feed_plain": "`batches.feed`, global shuffle, not compressed",
    "mds_read": "`StreamingDataset(shuffle=True)`, on one processor",
    "mds_read_all": "the same, on all processors",
    "mds_getitem": "`StreamingDataset[i]`, random numbers",
}
# MosaicML Streaming imports torch, which would look for a GPU.
_VARIABLES = {"CUDA_VISIBLE_DEVICES": ""}
_READ = {"feed": "writer", "feed_plain": "writer_plain"}
WRITERS = (*_OURS, "mds_zstd", "mds")


class Benchmark:
    """Runs the contestants on one input.

    Args:
        work: Where inputs and outputs are for the time being.
        python: Interpreter of the environment of MosaicML Streaming.
        seconds: How long each reader is measured; `StreamingDataset` has an epoch.
    """

    def __init__(self, work: pathlib.Path, python: pathlib.Path, seconds: float):
        self._work, self._python, self._seconds = work, python, seconds

    def prepare(self, size_bytes: int) -> None:
        """Writes the inputs, and the shards that are read."""
        say(f"writing {size_bytes / 1e6:,.0f} MB of text")
        written = c4_like.write_dataset(
            self._work / "inputs", size_bytes=size_bytes, files=_FILES
        )
        self._inputs = [str(file.path) for file in written]
        self.records = sum(file.records for file in written)
        self.size_bytes = sum(file.size_bytes for file in written)
        for key in WRITERS:
            self._write(key, self._work / key)

    def _write(self, key: str, output: pathlib.Path) -> dict[str, float]:
        """Writes shards, and returns the CPU and wall seconds that this took."""
        if key.startswith("mds"):
            command = [str(self._python), "-m", "benchmarks.streaming_peers", "write"]
            command += [str(output), *self._inputs]
            command += ["--compression=zstd:3"] if key == "mds_zstd" else []
        else:
            command = [sys.executable, "-m", "benchmarks.streaming", "--contestant"]
            command += [key, str(output), *self._inputs]
        run = run_process(key, command, variables=_VARIABLES)
        name = "index.json" if key.startswith("mds") else "dataset.json"
        found = json.loads((output / name).read_text())
        if key.startswith("mds"):
            found["records"] = sum(shard["samples"] for shard in found["shards"])
        if found["records"] != self.records:
            raise RuntimeError(
                f"{key}: wrote {found['records']:,} of {self.records:,} records"
            )
        return {name: run[name] for name in ("cpu_seconds", "wall_seconds")}

    def measure(self, key: str) -> dict[str, Any]:
        """Runs one contestant once.

        Raises:
            RuntimeError: It failed, or has other records.
        """
        if key in WRITERS:
            output = self._work / "out"
            os.sync()
            took = self._write(key, output)
            stored = sum(f.stat().st_size for f in output.rglob("*") if f.is_file())
            shutil.rmtree(output)
            return {
                "contestant": key,
                "records": self.records,
                "bytes": self.size_bytes,
                "stored_bytes": stored,
                **took,
            }
        if key.startswith("mds"):
            command = [str(self._python), "-m", "benchmarks.streaming_peers", "read"]
            command += [str(self._work / "mds")]
            command += {
                "mds_read": ["--one-processor"],
                "mds_read_all": [],
                "mds_getitem": [f"--one-by-one={self._seconds}"],
            }[key]
        else:
            command = [sys.executable, "-m", "benchmarks.streaming"]
            command += ["--contestant", key, f"--seconds={self._seconds}"]
            command += [str(self._work / _READ[key])]
        run = run_process(key, command, variables=_VARIABLES)
        if (found := run.pop("dataset_records")) != self.records:
            raise RuntimeError(f"{key}: {found:,} of {self.records:,} records")
        return run


def run_writer(key: str, output: str, inputs: Sequence[str]) -> dict[str, float]:
    """Measures a writer of gristmill in this process."""
    cpu, started = time.process_time(), time.perf_counter()
    with Writer(output, shard_bytes=_SHARD_BYTES, writer=_OURS[key]) as writer:
        for path in inputs:
            for record in read_frames_unchecked(path):
                writer.write(record)
    return {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - started,
    }


def run_feed(path: str, seconds: float) -> dict[str, Any]:
    """Measures a feed of gristmill in this process."""
    dataset = loader.open(path)
    batches = loader.global_batches(dataset, batch_size=_BATCH, seed=1)
    given = size_bytes = 0
    with batches.feed(host=(0, 1)) as feed:
        for _ in range(_WARM_BATCHES):
            next(feed)
        cpu, started = time.process_time(), time.perf_counter()
        while time.perf_counter() - started < seconds:
            for record in next(feed):
                given, size_bytes = given + 1, size_bytes + len(record)
        return {
            "records": given,
            "bytes": size_bytes,
            "dataset_records": len(dataset),
            "cpu_seconds": time.process_time() - cpu,
            "wall_seconds": time.perf_counter() - started,
        }


def _rows(runs: Sequence[Run], keys: Sequence[str], amount: str) -> list[str]:
    scale = 1e-6 if amount == "bytes" else 1e-3
    lines = []
    for key in keys:
        both = [
            by_round(runs, key, lambda run, unit=unit: run[amount] * scale / run[unit])
            for unit in ("cpu_seconds", "wall_seconds")
        ]
        if both[0]:
            shown = " | ".join(Spread.of([*each.values()]).show(1) for each in both)
            lines.append(f"| {LABELS[key]} | {shown} |")
    return lines


def render(results: dict[str, Any]) -> str:
    """Returns the report as Markdown."""
    made, runs = results["inputs"], results["runs"]
    stored = {
        run["contestant"]: run["stored_bytes"] for run in runs if "stored_bytes" in run
    }
    sizes = ", ".join(
        f"{LABELS[key]} {size / made['bytes']:.2f}" for key, size in stored.items()
    )
    lines = [
        "# MosaicML Streaming",
        "",
        "By `python -m benchmarks.streaming`; benchmarks/README.md tells how it "
        f"measures. {describe_machine(results['environment'])}",
        "",
        f"{made['records']:,} records of C4-like text, {made['bytes'] / 1e6:,.0f} MB. "
        f"Medians of {results['settings']['rounds']} rounds (lowest..highest). "
        "`Writer` reads each finished shard again and compares every record. Imports "
        "do not count. Threads of `StreamingDataset` wait for each other if they run "
        "on several processors, so it was bound to one as well. It mixes the records "
        "of some shards at a time, gristmill those of all.",
        "",
        *(f"{image}\n" for image in figures.images("streaming", results)),
        "| writing, one process | MB per CPU s | MB/s |",
        "| --- | ---: | ---: |",
        *_rows(runs, WRITERS, "bytes"),
        "",
        "| reading in random order, one process | thousand records per CPU s | per s |",
        "| --- | ---: | ---: |",
        *_rows(runs, [key for key in LABELS if key not in WRITERS], "records"),
        "",
        f"Bytes of the files for each byte of the input: {sizes}. `MDSWriter` "
        "compresses whole shards: to read one record, all of its shard is decompressed "
        "to the local disk.",
    ]
    return "\n".join(lines) + "\n"


def describe(python: pathlib.Path) -> dict[str, Any]:
    """Returns the conditions of the numbers, with the version of the peer."""
    environment = describe_environment(("numpy", "zstandard"))
    package = "mosaicml-streaming"
    environment["packages"][package] = version_in(python, package)
    return environment


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark, or one contestant of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streaming", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--streaming", metavar="PYTHON", type=pathlib.Path)
    parser.add_argument("--bytes", type=c4_like.parse_size, help="of text (200MB)")
    parser.add_argument(
        "--seconds", type=float, help="of each reader, but for an epoch (3)"
    )
    parser.add_argument(
        "--contestant", choices=(*_OURS, *_READ), help=argparse.SUPPRESS
    )
    parser.add_argument("paths", nargs="*", help=argparse.SUPPRESS)
    every = [*LABELS]
    args = parse_contest(
        parser,
        argv,
        LABELS,
        quick={"bytes": 2_000_000, "rounds": 1, "seconds": 0.2, "contestants": every},
        full={"bytes": 200_000_000, "rounds": 5, "seconds": 3, "contestants": every},
    )
    if args.contestant:
        path, *inputs = args.paths
        if args.contestant in _OURS:
            measured = run_writer(args.contestant, path, inputs)
        else:
            measured = run_feed(path, args.seconds)
        print(json.dumps(measured))
        return 0
    if args.streaming is None:
        parser.error("--streaming is missing: a Python with mosaicml-streaming")
    runs = []
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="mds-") as directory:
        benchmark = Benchmark(pathlib.Path(directory), args.streaming, args.seconds)
        benchmark.prepare(args.bytes)
        for number, key in take_turns(args.contestants, args.rounds):
            run = {"round": number + 1, **benchmark.measure(key)}
            rate = run["records"] / run["cpu_seconds"]
            say(f"{number + 1} {key:14} {rate:10,.0f} records per CPU second")
            runs.append(run)
    results = {
        "environment": describe(args.streaming),
        "settings": {"rounds": args.rounds, "seconds": args.seconds},
        "inputs": {"records": benchmark.records, "bytes": benchmark.size_bytes},
        "runs": runs,
    }
    write_reports(args, "streaming", results, render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
