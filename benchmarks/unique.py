"""Exact duplicates: MB of text per CPU second, beside datatrove, and memory.

    python -m benchmarks.unique --datatrove VENV/bin/python \
        --json benchmarks/results/unique.json --markdown docs/performance/unique.md

The same rows of C4-like text lie in Parquet and TFRecord files; a fourth of the files
hold the rows of others. Every contestant is a whole process, in rounds that alternate.
datatrove runs its blocks ExactDedupSignature and ExactFindDedups on the Parquet files,
with a task a file; it lists duplicates by number, and is not asked to filter.
`--memory-records` makes digests up, and measures the process that compares them.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import c4_like, process_cost
from benchmarks.contest import (
    describe_environment,
    describe_machine,
    parse_contest,
    say,
    version_in,
    write_reports,
)
from benchmarks.rounds import Spread, by_round, ratios, take_turns

_FILES, _COPIED = 6, 2
_PACKAGES = ("numpy", "pyarrow")
LABELS = {
    "text-parquet": "text, Parquet",
    "text-tfrecord": "text, TFRecord",
    "record-parquet": "record, Parquet",
    "record-tfrecord": "record, TFRecord",
    "normalised-parquet": "normalised, Parquet",
    "normalised-tfrecord": "normalised, TFRecord",
    "datatrove": "datatrove, ExactFindDedups, Parquet",
}
_PEER = """
import sys
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor as Local
from datatrove.pipeline.dedup.exact_dedup import (
    ExactDedupConfig, ExactDedupSignature, ExactFindDedups)
from datatrove.pipeline.readers import ParquetReader

def content(document: Document) -> str:
    return document.text

source, out, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = ExactDedupConfig(content_getter=content)
reader = ParquetReader(source, text_key="text", id_key="url")
steps = [
    ([reader, ExactDedupSignature(f"{out}/sigs", config=config)], files),
    ([ExactFindDedups(f"{out}/sigs", f"{out}/dups", config=config)], 1),
]
for number, (step, tasks) in enumerate(steps):
    Local(pipeline=step, tasks=tasks, workers=1, logging_dir=f"{out}/{number}").run()
"""


def write_inputs(directory: pathlib.Path, size_bytes: int) -> tuple[int, int, int]:
    """Writes the rows; returns these, the duplicates and the bytes of their text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for kind in ("parquet", "tfrecord"):
        (directory / kind).mkdir(parents=True)
    rows_before, text_bytes, copied = 0, 0, 0
    for number in range(_FILES):
        rows, left = [], size_bytes // (_FILES + _COPIED)
        frames = directory / "tfrecord" / f"{number}.tfrecord"
        with open(frames, "wb") as file:
            for row in c4_like.generate_rows(seed=number):
                left -= file.write(c4_like.frame_record(c4_like.encode_example(row)))
                rows.append(
                    {key.decode(): value.decode() for key, value in row.items()}
                )
                if left <= 0:
                    break
        table = directory / "parquet" / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), table, row_group_size=10_000)
        times = 1
        if number < _COPIED:
            times, copied = 2, copied + len(rows)
            for path in (frames, table):
                shutil.copy(path, path.with_stem(f"copy{number}"))
        rows_before += times * len(rows)
        text_bytes += times * sum(len(row["text"].encode()) for row in rows)
    return rows_before, copied, text_bytes


def measure_memory(records: int, folder: str) -> tuple[float, int]:
    """Compares made-up digests; returns CPU seconds and the peak of the process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.unique",
        "--digests",
        str(records),
        folder,
    ]
    cost = process_cost.measure_command(command)
    if cost.exit_code:
        raise RuntimeError(cost.output)
    return cost.cpu_seconds, cost.peak_process_bytes


def compare_digests(records: int, folder: str) -> int:
    """Spools runs of digests, of which a tenth are there twice, and compares them."""
    from gristmill.pipelines.duplicates.spooled_steps import Spool
    from gristmill.transforms.duplicates.digest_shards import DigestedShard
    from gristmill.transforms.duplicates.runs import RUN_RECORDS, Run

    spool, shards = Spool(folder), []
    runs = -(-records // RUN_RECORDS)
    for number in range(runs):
        rng = np.random.default_rng(number)
        digests = rng.integers(0, 1 << 63, (RUN_RECORDS, 2), np.int64).view(np.uint64)
        if number:
            again = np.random.default_rng(number - 1)
            before = again.integers(0, 1 << 63, (RUN_RECORDS // 10, 2), np.int64)
            digests[-len(before) :] = before.view(np.uint64)
        run = Run.of(digests, np.full(RUN_RECORDS, number), np.arange(RUN_RECORDS))
        spool.keep(number, 0, run)
        counts = {"runs": 1, "entries": len(run.entries), "copies": len(run.copies)}
        shards.append(DigestedShard(number, (), **counts))
    spool = spool.of(shards)
    sum(map(spool.resolve, range(spool.partitions)))
    removed = sum(map(spool.join, range(runs)))
    sys.exit(int(removed != (runs - 1) * (RUN_RECORDS // 10)))


class Benchmark:
    """Runs the contestants in turns, and keeps what each run took.

    Args:
        work: Where inputs and outputs are for the time being.
        datatrove: A Python that has it, None to leave it out.
    """

    def __init__(self, work: pathlib.Path, datatrove: pathlib.Path | None):
        self._work, self._datatrove = work, datatrove
        self.runs: list[dict[str, Any]] = []

    def prepare(self, size_bytes: int) -> None:
        """Writes the inputs."""
        say(f"writing {size_bytes / 1e6:,.0f} MB of records in each format")
        found = write_inputs(self._work / "in", size_bytes)
        self._records, self._removed, self._text_bytes = found

    def measure(self, key: str, round_number: int) -> None:
        """Runs one contestant once.

        Raises:
            RuntimeError: It failed, or found other duplicates.
        """
        out = self._work / "out"
        out.mkdir()
        by, _, kind = key.partition("-")
        source = self._work / "in" / (kind or "parquet")
        if self._datatrove is not None and key == "datatrove":
            files = str(_FILES + _COPIED)
            command = [self._datatrove, "-c", _PEER, source, out, files]
        else:
            command = [sys.executable, "-m", "gristmill", "unique", source, "--json"]
            command += ["--by", by, "--certificate", out / "c", "--workers", "1"]
        os.sync()
        cost = process_cost.measure_command([str(word) for word in command])
        if key == "datatrove":  # Four bytes for each.
            dups = (out / "dups").rglob("*.c4_dup")
            removed = sum(path.stat().st_size for path in dups) // 4
        else:
            said = [line for line in cost.output.splitlines() if line[:1] == "{"]
            removed = json.loads(said[0])["removed"] if said else -1
        shutil.rmtree(out)
        if cost.exit_code or removed != self._removed:
            raise RuntimeError(f"{key}: exit code {cost.exit_code}\n{cost.output}")
        say(f"{round_number} {key:20} {cost.cpu_seconds:7.2f} CPU s")
        self.runs.append(
            {
                "contestant": key,
                "round": round_number,
                "text_bytes": self._text_bytes,
                "records": self._records,
                "removed": removed,
                "cpu_seconds": cost.cpu_seconds,
                "wall_seconds": cost.wall_seconds,
                "peak_tree_bytes": cost.peak_tree_bytes,
            }
        )


def render(results: dict[str, Any]) -> str:
    """Returns the report as Markdown."""
    runs = results["runs"]
    text_mb = runs[0]["text_bytes"] / 1e6
    lines = [
        "# Exact duplicates",
        "",
        "By `python -m benchmarks.unique`; benchmarks/README.md tells how it measures. "
        f"{describe_machine(results['environment'])}",
        "",
        f"{text_mb:,.0f} MB of text in {runs[0]['records']:,} rows, of which "
        f"{runs[0]['removed']:,} are duplicates; medians of "
        f"{max(run['round'] for run in runs)} rounds, whole processes.",
        "",
        "| by, from | MB of text per CPU s | peak memory, MB |",
        "| --- | ---: | ---: |",
    ]
    for key, label in LABELS.items():
        own = [run for run in runs if run["contestant"] == key]
        if own:
            speeds = Spread.of([text_mb / run["cpu_seconds"] for run in own])
            peak = statistics.median(run["peak_tree_bytes"] for run in own)
            lines.append(f"| {label} | {speeds.show(1)} | {peak / 1e6:,.0f} |")
    took = [
        by_round(runs, key, operator.itemgetter("cpu_seconds"))
        for key in ("datatrove", "text-parquet")
    ]
    if all(took):
        times = Spread.of(ratios(*took)).show(1)
        lines += [
            "",
            f"By text from Parquet, {times} the text per CPU second of datatrove.",
        ]
    for one in results["memory"]:
        lines += [
            "",
            f"{one['records']:,} made-up digests were compared by one process in "
            f"{one['cpu_seconds']:,.0f} CPU s, with {one['peak_bytes'] / 1e6:,.0f} MB.",
        ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark, or the process that compares made-up digests."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.unique", description=__doc__.splitlines()[0]
    )
    size = c4_like.parse_size
    parser.add_argument("--bytes", type=size, help="of records (300MB)")
    parser.add_argument("--datatrove", type=pathlib.Path, help="a Python that has it")
    parser.add_argument("--memory-records", type=int, nargs="*", default=[])
    parser.add_argument("--digests", nargs=2, help=argparse.SUPPRESS)
    args = parse_contest(
        parser,
        argv,
        LABELS,
        quick={"bytes": 200_000, "rounds": 1},
        full={"bytes": 300_000_000, "rounds": 5},
    )
    if args.digests:
        return compare_digests(int(args.digests[0]), args.digests[1])
    keys = args.contestants or [
        key for key in LABELS if key != "datatrove" or args.datatrove is not None
    ]
    environment = describe_environment(_PACKAGES)
    if args.datatrove:
        version = version_in(args.datatrove, "datatrove")
        environment["packages"]["datatrove"] = version
    memory = []
    with tempfile.TemporaryDirectory(dir=args.work_dir) as folder:
        for records in args.memory_records:
            spool = pathlib.Path(folder, "spool")
            spool.mkdir()
            cpu_seconds, peak = measure_memory(records, str(spool))
            shutil.rmtree(spool)
            memory.append(
                {"records": records, "cpu_seconds": cpu_seconds, "peak_bytes": peak}
            )
        benchmark = Benchmark(pathlib.Path(folder), args.datatrove)
        benchmark.prepare(args.bytes)
        for number, key in take_turns(keys, args.rounds):
            benchmark.measure(key, number + 1)
    results = {"environment": environment, "runs": benchmark.runs, "memory": memory}
    write_reports(args, "unique", results, render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
