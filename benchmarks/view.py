"""The speed of `gristmill view`'s answers, for datasets of a million shards.

    python -m benchmarks.view --json benchmarks/results/view.json \
        --markdown docs/performance/view.md
    python -m benchmarks.view --quick

One dataset is of records, and one of packed rows: see `benchmarks.many_shards`. In each
round the command is started anew, is asked for its overview, and then for every other
answer once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from benchmarks.contest import (
    describe_environment,
    describe_machine,
    say,
    write_reports,
)
from benchmarks.many_shards import PER_INPUT, gristmill, make_dataset
from benchmarks.rounds import Spread, take_turns

KINDS = ("records", "packed")
_SHARDS = 1_000_000
_BATCH = 1024


def questions(overview: dict[str, Any], chance: random.Random) -> dict[str, str]:
    """Returns the questions after the overview, and the address of each."""
    records, shards = overview["records"], overview["shards"]
    first_step, other_step = (
        chance.randrange(overview["order"]["epoch_steps"]) for _ in range(2)
    )
    numbers = [chance.randrange(records) for _ in range(4)]
    return {
        "histograms": "sizes",
        "lineage": "lineage",
        "a shard": f"shard?shard={chance.randrange(shards)}",
        "the first record": f"record?record={numbers[0]}",
        "another record": f"record?record={numbers[1]}",
        "its source": f"source?record={numbers[1]}",
        "256 rows of a step": f"step?step={first_step}",
        "256 others, each read": f"step?step={other_step}&previews=1",
        "where a record is seen": f"seen?record={numbers[2]}",
        "the same, in 1,000 epochs": f"seen?record={numbers[3]}&stop_epoch=1000",
        "the quality of the shuffle": "quality",
        "the same, of another epoch": f"quality?epoch={chance.randrange(1, 1000)}",
        "the overview again": "overview",
    }


def look(dataset: pathlib.Path, number: int, tokenizer: pathlib.Path) -> dict[str, Any]:
    """Starts the command, and asks for everything once.

    Returns:
        Seconds from the start to the first answer, of wall and of CPU; milliseconds of
        each answer after it; bytes of each; the peak of memory.
    """
    command = [sys.executable, "-m", "gristmill", "view", dataset, "--no-browser"]
    command += ["--batch-size", _BATCH, "--seed", number, "--quiet"]
    if dataset.name == "packed":
        command += ["--tokenizer", tokenizer]
    began = time.perf_counter()
    with subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, text=True
    ) as it:
        try:
            assert it.stdout is not None
            url = f"{it.stdout.readline().strip()}api/"
            overview = json.loads(_get(url + "overview"))
            found: dict[str, Any] = {"first_seconds": time.perf_counter() - began}
            process = psutil.Process(it.pid)
            found["first_cpu_seconds"] = sum(process.cpu_times()[:2])
            found["milliseconds"], found["bytes"] = {}, {}
            asked = questions(overview, random.Random(number))
            for name, address in asked.items():
                began = time.perf_counter()
                data = _get(url + address)
                taken = time.perf_counter() - began
                found["milliseconds"][name] = 1000 * taken
                found["bytes"][name] = len(data)
            found["resident_bytes"] = process.memory_info().rss
        finally:
            it.kill()
    return found | {"load": os.getloadavg()[0]}


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=600) as answer:
        data: bytes = answer.read()
    return data


def measure(
    folder: pathlib.Path, *, shards: int, rounds: int, nice: int
) -> list[dict[str, Any]]:
    """Makes the datasets, and looks at each in every round."""
    gristmill("demo", folder / "demo")
    for kind in KINDS:
        say(f"making {shards:,} shards of {kind}")
        # In a process of its own, whose memory is given back.
        maker = multiprocessing.get_context("fork").Process(
            target=make_dataset, args=(folder, kind, shards)
        )
        maker.start()
        maker.join()
        if maker.exitcode:
            raise RuntimeError(f"{kind}: exit code {maker.exitcode}")
    os.nice(nice)
    runs = []
    for number, kind in take_turns(KINDS, rounds):
        run = look(folder / kind, number, folder / "demo/tokenizer.json")
        slowest = max(run["milliseconds"].values())
        say(
            f"round {number + 1}, {kind}: {run['first_seconds']:.2f} s to the first "
            f"answer, at most {slowest:.0f} ms for each after it"
        )
        runs.append({"contestant": kind, "round": number, **run})
    return runs


def render(results: dict[str, Any]) -> str:
    """Returns docs/performance/view.md."""
    runs = results["runs"]
    inputs = results["shards"] // PER_INPUT

    def row(name: str, value: Callable[[dict[str, Any]], float], digits: int) -> str:
        cells = (
            Spread.of([value(run) for run in runs if run["contestant"] == kind])
            for kind in KINDS
        )
        return f"| {name} | {' | '.join(cell.show(digits) for cell in cells)} |"

    answers = [
        row(name, lambda run, name=name: run["milliseconds"][name], 1)  # type: ignore[misc]
        for name in runs[0]["milliseconds"]
    ]
    sizes = {name: max(run["bytes"][name] for run in runs) for name in runs[0]["bytes"]}
    lines = "\n".join(
        f"{line} {sizes[name] / 1e3:.0f} |"
        for name, line in zip(sizes, answers, strict=True)
    )
    load = Spread.of([run["load"] for run in runs])
    return f"""\
# How fast `gristmill view` answers

[benchmarks/view.py](../../benchmarks/view.py) writes this page:

<!-- no-run: takes some ten minutes, and five million names of files -->
```bash
python -m benchmarks.view --json benchmarks/results/view.json \\
    --markdown docs/performance/view.md
```

[`gristmill view`](../prepare/view.md) was started on a dataset of records and on one of
packed rows, of {results["shards"]:,} shards each, on a local disk. Every shard is the
same file under another name; the table of shards and the list of {inputs:,} input
files are as long as real ones. It got an order of batches of {_BATCH:,} rows; of packed
rows also their tokenizer. Of {results["rounds"]} rounds, each with a start of its own:
the median and the range.

| from the start to the first answer | records | packed rows |
| --- | ---: | ---: |
{row("wall time, s", lambda run: run["first_seconds"], 2)}
{row("CPU time, s", lambda run: run["first_cpu_seconds"], 2)}
{row("memory in the end, MB", lambda run: run["resident_bytes"] / 1e6, 0)}

The first answer is the overview: counts, charts and warnings of all shards. Each answer
after it, in milliseconds, asked for the first time over a connection of its own:

| answer | records | packed rows | at most KB |
| --- | ---: | ---: | ---: |
{lines}

Histograms are of all records of a small dataset, and of a sample of these.

{describe_machine(results["environment"])}
Other processes took part of the processors meanwhile: the load average was
{load.show(1)}. What is measured had the niceness {results["nice"]}, and those 0.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, and writes every run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.view", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--shards", type=int, help=f"of each dataset ({_SHARDS:,})")
    parser.add_argument("--rounds", type=int, help="how often each is started (5)")
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of what is measured (0)"
    )
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--json", type=pathlib.Path, help="write every run here")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the report here")
    parser.add_argument("--work-dir", type=pathlib.Path, help="for what is written")
    args = parser.parse_args(argv)
    shards = args.shards or (100 if args.quick else _SHARDS)
    rounds = args.rounds or (1 if args.quick else 5)
    with tempfile.TemporaryDirectory(prefix="gristmill-", dir=args.work_dir) as name:
        runs = measure(pathlib.Path(name), shards=shards, rounds=rounds, nice=args.nice)
    results: dict[str, Any] = {
        "environment": describe_environment(("numpy", "tokenizers")),
        "shards": shards,
        "rounds": rounds,
        "nice": args.nice,
        "runs": runs,
    }
    write_reports(args, "view", results, render(results))


if __name__ == "__main__":
    main()
