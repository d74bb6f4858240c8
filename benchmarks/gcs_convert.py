"""Conversion from and to a bucket beside the same conversion on the local disk.

    python -m benchmarks.gcs_convert --markdown docs/performance/gcs_convert.md
    python -m benchmarks.gcs_convert --quick

The bucket is the server of the tests in a process of its own, over HTTP on loopback,
with the latency of a real one added to every answer. Every run is a whole process of
`gristmill convert`, imports counted; rounds alternate between the places. The
server counts the requests of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import c4_like, process_cost
from benchmarks.contest import describe_environment
from benchmarks.rounds import take_turns
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.lookup import delete_all
from tests.support.gcs_process import GcsProcess

_STARTUP_BYTES = 10_000
# US dollars for a thousand requests to a bucket of class Standard in one region, as
# cloud.google.com/storage/pricing had them in 2025. Deleting is free.
_PRICES = {
    **dict.fromkeys(("insert", "start", "list"), 0.005),
    **dict.fromkeys(("media", "stat", "bucket"), 0.0004),
    **dict.fromkeys(("chunk", "delete"), 0.0),  # A chunk is part of its upload.
}
_TARGET_RATIO = 0.8

Run = dict[str, Any]


class Benchmark:
    """The inputs, on the disk and in the bucket, and the runs over them.

    Args:
        args: The command line.
        work: Directory for inputs and outputs.
        server: The bucket.
    """

    def __init__(
        self, args: argparse.Namespace, work: pathlib.Path, server: GcsProcess
    ):
        self._args = args
        self._work = work
        self._server = server
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        self._storage = GcsStorage()
        self.records: dict[str, int] = {}
        for kind, size in (("main", args.bytes), ("startup", _STARTUP_BYTES)):
            written = c4_like.write_dataset(
                work / kind,
                size_bytes=size,
                files=args.files if kind == "main" else 1,
                seed=args.seed,
            )
            self.records[kind] = sum(file.records for file in written)
            for path in (work / kind).glob("*.tfrecord*"):
                self._storage.write(f"gs://in/{kind}/{path.name}", path.read_bytes())

    def run(self, kind: str, workers: int, latency_ms: int | None) -> Run:
        """Converts once in a new process, and deletes what it wrote.

        Args:
            kind: The input, `main` or `startup`.
            workers: Processes.
            latency_ms: Of the bucket; None for the local disk.
        """
        place = str(self._work) if latency_ms is None else "gs://in"
        output = str(self._work / "out") if latency_ms is None else "gs://out/c4"
        command = [
            *(sys.executable, "-m", "gristmill", "convert"),
            *(f"{place}/{kind}/*.tfrecord*", output, "--name=c4"),
            *(f"--workers={workers}", "--match-shards"),
        ]
        self._server.control(set={"latency_seconds": (latency_ms or 0) / 1e3})
        self._server.control(clear=True)
        os.sync()
        cost = process_cost.measure_command(command, timeout_seconds=600)
        counted = self._server.control(set={"latency_seconds": 0}, clear=True)
        if cost.exit_code:
            raise SystemExit(cost.output)
        if latency_ms is None:
            shutil.rmtree(output)
        else:
            delete_all(self._storage.scan("gs://out/c4", deep=True))
        return {
            "kind": kind,
            "workers": workers,
            "latency_ms": latency_ms,
            "wall_seconds": cost.wall_seconds,
            "cpu_seconds": cost.cpu_seconds,
            "peak_tree_bytes": cost.peak_tree_bytes,
            "requests": counted["requests"],
            "connections": counted["connections"],
        }

    def runs(self) -> Iterator[Run]:
        """Yields every run, with the number of its round."""
        args = self._args
        places = [None, *args.latency_ms]
        for round_number, latency_ms in take_turns(places, args.rounds):
            for workers in args.workers:
                for kind in ("startup", "main"):
                    run = self.run(kind, workers, latency_ms)
                    _say(run)
                    yield run | {"round": round_number}


def _say(run: Run) -> None:
    place = "local" if run["latency_ms"] is None else f"{run['latency_ms']} ms"
    print(
        f"{run['kind']:>8} {place:>6} {run['workers']} workers "
        f"{run['wall_seconds']:6.2f} s wall {run['cpu_seconds']:6.2f} s CPU "
        f"{run['requests']}",
        file=sys.stderr,
    )


def _seconds(
    runs: Sequence[Run], workers: int, latency_ms: int | None, *, net: bool
) -> dict[int, float]:
    """Returns the wall time of each round, with or without that of start-up."""
    found: dict[str, dict[int, float]] = {"main": {}, "startup": {}}
    for run in runs:
        if (run["workers"], run["latency_ms"]) == (workers, latency_ms):
            found[run["kind"]][run["round"]] = run["wall_seconds"]
    return {
        number: seconds - (found["startup"][number] if net else 0)
        for number, seconds in found["main"].items()
    }


def ratios(results: dict[str, Any], workers: int, latency_ms: int) -> tuple[Any, Any]:
    """Returns the speed beside the local one, whole processes and start-up aside.

    Each is the median of the rounds, and that of the fastest runs: others on the
    machine make runs slower, never faster.
    """
    found = []
    for net in (False, True):
        local = _seconds(results["runs"], workers, None, net=net)
        here = _seconds(results["runs"], workers, latency_ms, net=net)
        median = statistics.median(local[number] / here[number] for number in here)
        found.append((median, min(local.values()) / min(here.values())))
    return found[0], found[1]


def _dollars(requests: dict[str, int]) -> float:
    return sum(_PRICES[kind] * count / 1000 for kind, count in requests.items())


def _requests(runs: Sequence[Run], workers: int, latency_ms: int) -> dict[str, int]:
    matching = [
        run["requests"]
        for run in runs
        if (run["kind"], run["workers"], run["latency_ms"])
        == ("main", workers, latency_ms)
    ]
    return {kind: max(run.get(kind, 0) for run in matching) for kind in _PRICES}


def render_markdown(results: dict[str, Any]) -> str:
    """Returns the report."""
    megabytes = results["input_bytes"] / 1e6
    rows, costs, passed = [], [], True
    for workers in results["workers"]:
        for latency_ms in (None, *results["latency_ms"]):
            whole = _seconds(results["runs"], workers, latency_ms, net=False)
            net = _seconds(results["runs"], workers, latency_ms, net=True)
            cells = [
                str(workers),
                "local disk" if latency_ms is None else f"bucket, {latency_ms} ms",
                f"{statistics.median(whole.values()):.2f} ({min(whole.values()):.2f})",
                f"{megabytes / min(net.values()):.1f}",
                "",
                "",
            ]
            if latency_ms is not None:
                both = ratios(results, workers, latency_ms)
                cells[4:] = [f"{median:.2f} ({best:.2f})" for median, best in both]
                passed = passed and min(both[1]) >= _TARGET_RATIO
                found = _requests(results["runs"], workers, latency_ms)
                if latency_ms == results["latency_ms"][0]:
                    dollars = _dollars(found) / results["records"] * 1e6
                    costs.append(
                        [
                            str(workers),
                            *map(str, found.values()),
                            f"{sum(found.values()) / results['files']:.1f}",
                            f"{dollars:.4f}",
                        ]
                    )
            rows.append(cells)
    lines = [
        "# Conversion from and to a bucket",
        "",
        "Written by `python -m benchmarks.gcs_convert`; see benchmarks/README.md.",
        "",
        f"{results['records']:,} records, {megabytes:,.0f} MB in {results['files']} "
        f"files, one shard each. Measured on {results['date']}; "
        f"{results['rounds']} rounds on {results['machine']}. "
        "The bucket is a server on the same machine: it takes part of the processors "
        "that the local conversion has for itself. Medians of the rounds; in brackets "
        "the fastest.",
        "",
        *_table(
            [
                "workers",
                "input and output",
                "seconds, whole process",
                "MB/s, start-up aside, fastest",
                "speed beside local, whole process",
                "start-up aside",
            ],
            rows,
        ),
        "",
        f"Target: {_TARGET_RATIO} of the local speed, start-up aside: "
        f"{'reached' if passed else 'MISSED'}.",
        "",
        "## Requests",
        "",
        "At the first latency; prices of class Standard in one region, in US dollars "
        "(0.005 for a thousand uploads or listings, 0.0004 for a thousand reads).",
        "",
        *_table(
            ["workers", *_PRICES, "for a shard", "dollars for a million records"],
            costs,
        ),
        "",
    ]
    return "\n".join(lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = c4_like.parse_size
    parser.add_argument("--bytes", type=size, help="size of the input")
    parser.add_argument("--files", type=int, help="its files, and so shards")
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--latency-ms", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work-dir", help="where inputs and outputs go meanwhile")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    args = parser.parse_args(argv)
    for name, full, quick in (
        ("bytes", 400_000_000, 4_000_000),
        ("files", 16, 2),
        ("rounds", 5, 1),
    ):
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    args = parse_arguments(argv)
    with (
        tempfile.TemporaryDirectory(dir=args.work_dir) as work,
        GcsProcess("in", "out") as server,
    ):
        benchmark = Benchmark(args, pathlib.Path(work), server)
        results = {
            "date": describe_environment(())["date"],
            "machine": f"{os.cpu_count()} processors, Python "
            f"{platform.python_version()}",
            "input_bytes": args.bytes,
            "files": args.files,
            "records": benchmark.records["main"],
            "workers": args.workers,
            "latency_ms": args.latency_ms,
            "rounds": args.rounds,
            "runs": list(benchmark.runs()),
        }
    report = render_markdown(results)
    print(report)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
