"""Exact duplicates: MB of text per CPU second, beside datatrove, and memory.

    python -m benchmarks.unique --datatrove VENV/bin/python \
        --json benchmarks/results/unique.json --markdown docs/performance/unique.md

The same rows of C4-like text are in a dataset and in Parquet files; a fourth of the
files hold the rows of others. Every contestant is a whole process, in rounds that
alternate. datatrove runs its blocks ExactDedupSignature and ExactFindDedups on the
Parquet files, with a task a file; it lists duplicates by number, and is not asked to
filter. gristmill reads the dataset, and attaches the column to it.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

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
    "text": "text",
    "record": "record",
    "normalised": "normalised",
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


class Benchmark:
    """Runs the contestants in turns, and keeps what each run took.

    Args:
        work: Where inputs and outputs are for the time being.
        datatrove: A Python that has it, None to leave it out.
    """

    def __init__(self, work: pathlib.Path, datatrove: pathlib.Path | None):
        self._work, self._datatrove = work, datatrove
        self._dataset = work / "dataset"
        self.runs: list[dict[str, Any]] = []

    def prepare(self, size_bytes: int) -> None:
        """Writes the inputs."""
        say(f"writing {size_bytes / 1e6:,.0f} MB of records in each format")
        found = write_inputs(self._work / "in", size_bytes)
        self._records, self._removed, self._text_bytes = found
        source = self._work / "in" / "tfrecord"
        command = [sys.executable, "-m", "gristmill", "convert", source, self._dataset]
        subprocess.run([*map(str, command), "-q"], check=True)

    def measure(self, key: str, round_number: int) -> None:
        """Runs one contestant once.

        Raises:
            RuntimeError: It failed, or found other duplicates.
        """
        out = self._work / "out"
        out.mkdir()
        if self._datatrove is not None and key == "datatrove":
            files = str(_FILES + _COPIED)
            source = self._work / "in" / "parquet"
            command = [self._datatrove, "-c", _PEER, source, out, files]
        else:
            shutil.copytree(self._dataset, out / "data")
            command = [sys.executable, "-m", "gristmill", "unique", out / "data"]
            command += ["--by", key, "--json", "--workers", "1"]
        os.sync()
        cost = process_cost.measure_command([str(word) for word in command])
        if key == "datatrove":  # Four bytes for each.
            dups = (out / "dups").rglob("*.c4_dup")
            removed = sum(path.stat().st_size for path in dups) // 4
        else:
            said = [line for line in cost.output.splitlines() if line[:1] == "{"]
            removed = json.loads(said[0])["duplicates"] if said else -1
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


def describe(datatrove: pathlib.Path | None) -> dict[str, Any]:
    """Returns the machine and the versions, also of what another Python has."""
    environment = describe_environment(_PACKAGES)
    if datatrove is not None:
        version = version_in(datatrove, "datatrove")
        environment["packages"]["datatrove"] = version
    return environment


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
        "| by | MB of text per CPU s | peak memory, MB |",
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
        for key in ("datatrove", "text")
    ]
    if all(took):
        times = Spread.of(ratios(*took)).show(1)
        lines += [
            "",
            f"By text, {times} the text per CPU second of datatrove.",
        ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.unique", description=__doc__.splitlines()[0]
    )
    size = c4_like.parse_size
    parser.add_argument("--bytes", type=size, help="of records (300MB)")
    parser.add_argument("--datatrove", type=pathlib.Path, help="a Python that has it")
    args = parse_contest(
        parser,
        argv,
        LABELS,
        quick={"bytes": 200_000, "rounds": 1},
        full={"bytes": 300_000_000, "rounds": 5},
    )
    keys = args.contestants or [
        key for key in LABELS if key != "datatrove" or args.datatrove is not None
    ]
    with tempfile.TemporaryDirectory(dir=args.work_dir) as folder:
        benchmark = Benchmark(pathlib.Path(folder), args.datatrove)
        benchmark.prepare(args.bytes)
        for number, key in take_turns(keys, args.rounds):
            benchmark.measure(key, number + 1)
    environment = describe(args.datatrove)
    results = {"environment": environment, "runs": benchmark.runs}
    write_reports(args, "unique", results, render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
