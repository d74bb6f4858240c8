"""Removing some records from a dataset beside converting it anew.

    python -m benchmarks.remove --bytes 2GB --shards 100 --records 1000
    python -m benchmarks.remove --quick

One process does both in turns, without its start-up: the records that are removed are
spread over all shards, so each is written again, and the conversion makes the same
number of shards of the TFRecord files. Both check what they wrote.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.c4_like import parse_size, write_dataset
from benchmarks.contest import describe_environment, say
from benchmarks.rounds import Spread, take_turns
from gristmill.dataset import open_manifest
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.pipelines.removal.run_removal import remove

_FILES = 8
_GROUP_SIZES = (1, 16)

Runs = dict[str, list[dict[str, float]]]


def convert_to(folder: pathlib.Path, output: pathlib.Path, **options: Any) -> None:
    """Converts the TFRecord files in a folder."""
    given = ConvertOptions(
        input=(f"{folder}/*.tfrecord*",), output=str(output), name="text", **options
    )
    convert(**conversion_of(given)._asdict(), workers=1)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Returns the cost of a piece of work."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }


def measure(
    folder: pathlib.Path, *, shards: int, records: int, rounds: int
) -> dict[int, Runs]:
    """Converts and removes in every round, beginning with the other one each time."""
    found: dict[int, Runs] = {}
    for group_size in _GROUP_SIZES:
        runs: Runs = {"convert": [], "remove": []}
        shutil.rmtree(folder / "out", ignore_errors=True)
        dataset, output = folder / f"dataset{group_size}", folder / "out"
        options = {"num_shards": shards, "group_size": group_size}
        convert_to(folder / "tfrecord", dataset, **options)
        before = open_manifest(str(dataset)).splits["train"]
        gone = random.Random(0).sample(range(before.records), records)
        shutil.copytree(dataset, output)
        remove(str(output), {"records": gone}, workers=1)  # What is imported late.
        for number, name in take_turns([*runs], rounds):
            shutil.rmtree(output, ignore_errors=True)
            if name == "remove":
                shutil.copytree(dataset, output)
                os.sync()
                asked = {"records": gone}
                work = functools.partial(remove, str(output), asked, workers=1)
                cost = timed(work)
                after = open_manifest(str(output)).splits["train"]
                if after.records != before.records - records:
                    raise RuntimeError(f"{after.records} records are left")
            else:
                source = folder / "tfrecord"
                cost = timed(functools.partial(convert_to, source, output, **options))
            runs[name].append(cost)
            seconds = cost["wall_seconds"]
            say(f"round {number + 1}, group size {group_size}, {name}: {seconds:.2f} s")
        found[group_size] = runs
    return found


def table_of(found: dict[int, Runs]) -> str:
    """Returns how much faster a removal is, round by round, as Markdown."""
    lines = [
        "| group size | convert s | remove s | times the speed | of CPU |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for group_size, runs in found.items():
        row = [str(group_size)]
        for name in ("convert", "remove"):
            seconds = [run["wall_seconds"] for run in runs[name]]
            row.append(Spread.of(seconds).show(2))
        for column in ("wall_seconds", "cpu_seconds"):
            pairs = zip(runs["convert"], runs["remove"], strict=True)
            ratios = [anew[column] / cut[column] for anew, cut in pairs]
            row.append(Spread.of(ratios).show(1))
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints a table, and writes every run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.remove", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--bytes", type=parse_size, help="of frames (200MB)")
    parser.add_argument("--shards", type=int, default=10, help="how many (10)")
    parser.add_argument("--records", type=int, default=100, help="to remove (100)")
    parser.add_argument("--rounds", type=int, help="how often each runs (3)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--json", type=pathlib.Path, help="write every run here")
    parser.add_argument("--work-dir", type=pathlib.Path, help="for what is written")
    args = parser.parse_args(argv)
    size_bytes = args.bytes or (2_000_000 if args.quick else 200_000_000)
    rounds = args.rounds or (1 if args.quick else 3)
    with tempfile.TemporaryDirectory(prefix="gristmill-", dir=args.work_dir) as name:
        folder = pathlib.Path(name)
        write_dataset(folder / "tfrecord", size_bytes=size_bytes, files=_FILES)
        counts = {"shards": args.shards, "records": args.records}
        found = measure(folder, **counts, rounds=rounds)
    print(table_of(found))
    if args.json is not None:
        results: dict[str, Any] = {
            "environment": describe_environment(("zstandard", "numpy")),
            "size_bytes": size_bytes,
            **counts,
            "runs": found,
        }
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
