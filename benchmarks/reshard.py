"""Resharding a dataset beside converting the same records from TFRecord files.

    python -m benchmarks.reshard --json benchmarks/results/reshard.json
    python -m benchmarks.reshard --quick

Whole processes with start-up, two workers, in turns; each writes the same records into
the same number of shards. Chunks are copied where the options stay. Every output is
checked to have the digest of the records.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.c4_like import parse_size, write_dataset
from benchmarks.contest import describe_environment, say
from benchmarks.process_cost import measure_command
from benchmarks.rounds import Spread, take_turns
from gristmill.dataset import open_manifest

_FILES = 8
_SHARDS = 5  # None ends where a file does.
_GROUPS = "--group-size=16"
# Datasets to be read, by the options that they are written with.
_SOURCES = {
    "dataset of single records": (),
    "dataset of 16 records a chunk": (_GROUPS,),
    "dataset, uncompressed": ("--compression=uncompressed",),
}
# Options of the conversions that are measured, beside the default ones.
_OPTIONS = {
    "dataset of 16 records a chunk": (_GROUPS,),
}
_BASE = "TFRecord files"


def command(source: str, output: pathlib.Path, *options: str) -> list[str]:
    """Returns a conversion that is named alike, whatever its source is."""
    start = [sys.executable, "-m", "gristmill", "convert", source, str(output)]
    return [*start, "--name=text", "--split=train", *options]


def digest_of(output: pathlib.Path) -> str:
    """Returns the digest of what was written."""
    return open_manifest(str(output)).splits["train"].records_digest


def make_sources(folder: pathlib.Path, size_bytes: int) -> dict[str, str]:
    """Writes the files and the datasets that are made of them, by name."""
    plain = folder / "tfrecord"
    write_dataset(plain, size_bytes=size_bytes, files=_FILES)
    sources = {_BASE: f"{plain}/*.tfrecord*"}
    for number, (name, options) in enumerate(_SOURCES.items()):
        output = folder / f"source{number}"
        subprocess.run(
            command(sources[_BASE], output, "--match-shards", *options),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        sources[name] = str(output)
        if number == 0:
            sources["its shards as files"] = f"{output}/*.array_record*"
    return sources


def measure(
    sources: dict[str, str], folder: pathlib.Path, *, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Converts each source in every round, beginning with another one each time."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    names, digests = [*sources], set()
    for number, name in take_turns(names, rounds):
        output = folder / "out"
        shutil.rmtree(output, ignore_errors=True)
        os.sync()
        options = f"--num-shards={_SHARDS}", "--workers=2", *_OPTIONS.get(name, ())
        cost = measure_command(command(sources[name], output, *options))
        if cost.exit_code:
            raise RuntimeError(f"exit code {cost.exit_code}: {cost.output}")
        digests.add(digest_of(output))
        found[name].append(
            {
                "wall_seconds": cost.wall_seconds,
                "cpu_seconds": cost.cpu_seconds,
                "peak_tree_bytes": cost.peak_tree_bytes,
            }
        )
        say(f"round {number + 1}, {name}: {cost.wall_seconds:.2f} s")
    if len(digests) != 1:
        raise RuntimeError(f"not the same records: {digests}")
    return found


def table_of(found: dict[str, list[dict[str, float]]], size_bytes: int) -> str:
    """Returns the medians, and the ratios round by round, as Markdown."""
    lines = [
        "| converted from | MB/s | of TFRecord | MB/CPU s | of TFRecord | peak MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in found.items():
        row = [name]
        for column in ("wall_seconds", "cpu_seconds"):
            seconds = [run[column] for run in runs]
            base = [run[column] for run in found[_BASE]]
            ratios = [b / a for a, b in zip(seconds, base, strict=True)]
            row.append(f"{size_bytes / 1e6 / statistics.median(seconds):.1f}")
            row.append(Spread.of(ratios).show(2))
        peak = statistics.median(run["peak_tree_bytes"] for run in runs)
        lines.append("| " + " | ".join([*row, f"{peak / 1e6:.0f}"]) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints a table, and writes every run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reshard", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--bytes", type=parse_size, help="of frames (500MB)")
    parser.add_argument("--rounds", type=int, help="how often each runs (5)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--json", type=pathlib.Path, help="write every run here")
    parser.add_argument("--work-dir", type=pathlib.Path, help="for what is written")
    args = parser.parse_args(argv)
    size_bytes = args.bytes or (2_000_000 if args.quick else 500_000_000)
    rounds = args.rounds or (1 if args.quick else 5)
    with tempfile.TemporaryDirectory(prefix="gristmill-", dir=args.work_dir) as name:
        folder = pathlib.Path(name)
        found = measure(make_sources(folder, size_bytes), folder, rounds=rounds)
    print(table_of(found, size_bytes))
    if args.json is not None:
        results: dict[str, Any] = {
            "environment": describe_environment(("zstandard", "numpy")),
            "size_bytes": size_bytes,
            "runs": found,
        }
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
