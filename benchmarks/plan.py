"""The predictions of `gristmill plan` beside the work of `gristmill convert`.

    python -m benchmarks.plan --json benchmarks/results/plan.json \
        --markdown docs/performance/plan.md
    python -m benchmarks.plan --quick

Four data sets of different formats are made up. None was used to choose a constant of
the plan. In each round, each data set is planned and then converted by the command that
the plan prints, with as many workers; each round begins with another one. A last plan
is of a listing of 100 GB: the same files under many names.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pathlib
import shlex
import shutil
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks import figures
from benchmarks.c4_like import parse_size, write_dataset
from benchmarks.contest import describe_environment, say, write_reports
from benchmarks.process_cost import measure_command
from benchmarks.rounds import take_turns

_WORKERS = 2
_LISTED_BYTES = 100_000_000_000
_LISTING_RUNS = 5
_FILES = 4


def write_text(directory: pathlib.Path, size_bytes: int) -> None:
    """Writes TFRecords of text like C4's."""
    write_dataset(directory, size_bytes=size_bytes, files=_FILES)


def _events(rng: np.random.Generator, size_bytes: int) -> Iterator[bytes]:
    """Yields lines of a log whose messages become longer from first to last."""
    kinds = ("disk", "user", "job")
    words = [f"{kind}{number}" for kind in kinds for number in range(400)]
    written = 0
    while written < size_bytes:
        count = 3 + int(40 * written / size_bytes) + int(rng.integers(8))
        event = {
            "id": int(rng.integers(1 << 48)),
            "time": 1_700_000_000 + written / 1000,
            "level": ("info", "warning", "error")[int(rng.integers(3))],
            "values": rng.normal(size=4).round(4).tolist(),
            "message": " ".join(words[n] for n in rng.zipf(1.4, count) % len(words)),
        }
        line = json.dumps(event).encode() + b"\n"
        written += len(line)
        yield line


def write_events(directory: pathlib.Path, size_bytes: int) -> None:
    """Writes JSON lines of events; each file begins where the last one ended."""
    directory.mkdir()
    lines = _events(np.random.default_rng(1), size_bytes)
    for number in range(_FILES):
        with open(directory / f"events-{number}.jsonl", "wb") as file:
            for line in lines:
                file.write(line)
                if file.tell() >= size_bytes // _FILES:
                    break


def write_tokens(directory: pathlib.Path, size_bytes: int) -> None:
    """Writes Parquet of documents as token ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir()
    rng = np.random.default_rng(2)
    for number in range(_FILES):
        path = directory / f"tokens-{number}.parquet"
        schema = pa.schema([("id", pa.int64()), ("tokens", pa.list_(pa.int32()))])
        with pq.ParquetWriter(path, schema) as writer:
            while path.stat().st_size < size_bytes // _FILES:
                lengths = np.minimum(rng.lognormal(5.5, 1, 4000), 8000).astype(int) + 1
                tokens = (rng.zipf(1.3, int(lengths.sum())) % 50_000).astype(np.int32)
                ends = np.append(0, np.cumsum(lengths)).astype(np.int32)
                lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(tokens))
                ids = pa.array(rng.integers(1 << 40, size=len(lengths)))
                writer.write_table(pa.table([ids, lists], schema=schema))


def write_images(directory: pathlib.Path, size_bytes: int) -> None:
    """Writes tars of samples: bytes that do not compress, and a small JSON."""
    directory.mkdir()
    rng = np.random.default_rng(3)
    for number in range(_FILES):
        written = sample = 0
        with tarfile.open(directory / f"images-{number}.tar", "w") as tar:
            while written < size_bytes // _FILES:
                image = rng.bytes(int(min(rng.lognormal(11, 0.7), 2_000_000)))
                label = json.dumps({"label": int(rng.integers(1000)), "by": "made up"})
                for suffix, data in (("jpg", image), ("json", label.encode())):
                    member = tarfile.TarInfo(f"{number:03d}{sample:06d}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
                sample += 1
                written += len(image)


DATA: dict[str, Callable[[pathlib.Path, int], None]] = {
    "text, TFRecord": write_text,
    "events, JSON lines": write_events,
    "token ids, Parquet": write_tokens,
    "images, WebDataset": write_images,
}


def make_plan(inputs: pathlib.Path, output: pathlib.Path) -> dict[str, Any]:
    """Runs `gristmill plan`; returns its output, and its wall and CPU time."""
    command = [sys.executable, "-m", "gristmill", "plan", str(inputs), "--json"]
    command += ["--output", str(output), "--workers", str(_WORKERS)]
    with tempfile.NamedTemporaryFile() as said:
        shell = f"{shlex.join(command)} > {shlex.quote(said.name)}"
        cost = measure_command(["bash", "-c", shell])
        if cost.exit_code:
            raise RuntimeError(f"exit code {cost.exit_code}: {cost.output}")
        plan: dict[str, Any] = json.load(said)
    return plan | {"wall_seconds": cost.wall_seconds, "own_cpu": cost.cpu_seconds}


def convert(plan: dict[str, Any], output: pathlib.Path) -> dict[str, float]:
    """Runs the command of a plan; returns its cost and its output."""
    shutil.rmtree(output, ignore_errors=True)
    words = shlex.split(plan["command"])
    assert words[0] == "gristmill"
    command = [sys.executable, "-m", *words, "--workers", str(_WORKERS)]
    os.sync()
    cost = measure_command(command)
    if cost.exit_code:
        raise RuntimeError(f"exit code {cost.exit_code}: {cost.output}")
    files = [path for path in output.rglob("*") if path.is_file()]
    made = {
        "wall_seconds": cost.wall_seconds,
        "cpu_seconds_per_worker": cost.cpu_seconds / _WORKERS,
        "file_bytes": float(sum(path.stat().st_size for path in files)),
    }
    shutil.rmtree(output)
    return made


def plan_listing(
    folder: pathlib.Path, inputs: pathlib.Path, *, listed_bytes: int
) -> dict[str, Any]:
    """Plans a large listing: the files of a directory under many names."""
    links = folder / "listing"
    links.mkdir()
    files = sorted(path for path in inputs.iterdir() if path.suffix != ".json")
    listed = number = 0
    while listed < listed_bytes:
        source = files[number % len(files)]
        ending = ".tfrecord" if ".tfrecord" in source.name else source.suffix
        os.link(source, links / f"part-{number:06d}{ending}")
        listed += source.stat().st_size
        number += 1
    runs = [make_plan(links, folder / "out") for _ in range(_LISTING_RUNS)]
    runs.sort(key=lambda run: float(run["wall_seconds"]))
    return runs[len(runs) // 2] | {"load": os.getloadavg()[0]}


def measure(
    folder: pathlib.Path, names: Sequence[str], *, size_bytes: int, rounds: int
) -> dict[str, Any]:
    """Plans and converts each data set in every round."""
    inputs = {name: folder / f"data{number}" for number, name in enumerate(names)}
    for name, directory in inputs.items():
        say(f"writing {name}")
        DATA[name](directory, size_bytes)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number, name in take_turns(names, rounds):
        output = folder / "out"
        plan = make_plan(inputs[name], output)
        made = convert(plan, output)
        found[name].append({"plan": plan, "made": made})
        say(
            f"round {number + 1}, {name}: "
            f"{plan['file_bytes']['value'] / 1e6:.1f} MB predicted, "
            f"{made['file_bytes'] / 1e6:.1f} made; "
            f"{plan['cpu_seconds_per_worker']:.2f} CPU s a worker predicted, "
            f"{made['cpu_seconds_per_worker']:.2f} taken"
        )
    # Of small files that would be too many.
    listed_bytes = min(_LISTED_BYTES, 500 * size_bytes)
    listing = plan_listing(folder, inputs[names[0]], listed_bytes=listed_bytes)
    say(f"listing: {listing['wall_seconds']:.1f} s")
    return {"runs": found, "listing": listing}


def table_of(results: dict[str, Any]) -> str:
    """Returns the predictions and the results, as Markdown."""
    lines = [
        "| data | input MB | predicted MB | made MB | off | said ± | CPU s a worker, "
        "predicted | taken | off | plan, CPU s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in results["runs"].items():
        plans = [run["plan"] for run in runs]
        made = statistics.median(run["made"]["file_bytes"] for run in runs)
        cpu = statistics.median(run["made"]["cpu_seconds_per_worker"] for run in runs)
        said = [plan["file_bytes"]["value"] for plan in plans]
        cpus = [plan["cpu_seconds_per_worker"] for plan in plans]
        size_off = max((abs(one / made - 1), one / made - 1) for one in said)[1]
        cpu_off = [one / cpu - 1 for one in cpus]
        error = plans[0]["file_bytes"]["error"] / plans[0]["file_bytes"]["value"]
        lines.append(
            f"| {name} | {plans[0]['inputs']['bytes'] / 1e6:.0f} "
            f"| {statistics.median(said) / 1e6:.1f} | {made / 1e6:.1f} "
            f"| {size_off:+.1%} | {error:.1%} "
            f"| {statistics.median(cpus):.2f} | {cpu:.2f} "
            f"| {min(cpu_off):+.0%} to {max(cpu_off):+.0%} "
            f"| {statistics.median(plan['own_cpu'] for plan in plans):.1f} |"
        )
    return "\n".join(lines)


def render(results: dict[str, Any]) -> str:
    """Returns docs/performance/plan.md."""
    about, listing = results["environment"], results["listing"]
    listed = listing["inputs"]
    rounds = len(next(iter(results["runs"].values())))
    images = "\n\n".join(figures.images("plan", results))
    where = f"{about['cpu']}, {about['cpu_count']} cores"
    return f"""\
# How good a plan is

[benchmarks/plan.py](../../benchmarks/plan.py) writes this page:

<!-- no-run: takes some minutes, and 3 GB of disk -->
```bash
python -m benchmarks.plan --json benchmarks/results/plan.json \\
    --markdown docs/performance/plan.md
```

[`gristmill plan`](../prepare/plan.md) predicted what the command that it prints then
did, on data that was made up for this comparison: text like C4's, log messages that
become longer from the first file to the last, token ids, and images that do
not compress. Measured on {about["date"]} on {where}, {_WORKERS} workers, {rounds}
rounds in turns.

{images}

{table_of(results)}

Sizes are of all files of the dataset. `off` compares the worst plan of all rounds, of
CPU all of them, with the median of the conversions. `said ±` is the error that the plan
gives. CPU is user and system time of all processes, divided by the workers. `plan, CPU`
is what the plan took itself, in all its processes.

A listing of {listed["bytes"] / 1e9:.0f} GB in {listed["files"]:,} files was planned in
{listing["wall_seconds"]:.1f} s, and {listing["own_cpu"]:.1f} s of CPU, the median of
{_LISTING_RUNS} runs. The files are the same few under many names. Other processes took
part of the cores meanwhile: the load average was {listing["load"]:.1f}.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints a table, and writes every run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plan", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--bytes", type=parse_size, help="of each input (400MB)")
    parser.add_argument("--rounds", type=int, help="how often each runs (5)")
    parser.add_argument("--only", choices=DATA, help="one data set")
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--json", type=pathlib.Path, help="write every run here")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the report here")
    parser.add_argument("--work-dir", type=pathlib.Path, help="for what is written")
    args = parser.parse_args(argv)
    size_bytes = args.bytes or (4_000_000 if args.quick else 400_000_000)
    rounds = args.rounds or (1 if args.quick else 5)
    names = [args.only] if args.only else list(DATA)[: 1 if args.quick else None]
    with tempfile.TemporaryDirectory(prefix="gristmill-", dir=args.work_dir) as name:
        found = measure(pathlib.Path(name), names, size_bytes=size_bytes, rounds=rounds)
    results: dict[str, Any] = {
        "environment": describe_environment(("zstandard", "numpy", "pyarrow")),
        "size_bytes": size_bytes,
        **found,
    }
    write_reports(args, "plan", results, render(results))


if __name__ == "__main__":
    main()
