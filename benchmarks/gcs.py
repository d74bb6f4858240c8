"""Random records from a bucket: gristmill, Grain and readers of ranges.

    python -m benchmarks.gcs --json benchmarks/results/gcs.json \
        --markdown docs/performance/gcs.md
    python -m benchmarks.gcs --quick

A server in a process of its own adds the latency and the bandwidth of a real bucket;
it has no TLS. Every reader is a process of its own, a new one for each run; rounds
begin with a different reader each. benchmarks/README.md explains the result.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks import c4_like, figures
from benchmarks.contest import (
    describe_environment,
    describe_machine,
    say,
    write_reports,
)
from benchmarks.gcs_readers import BUCKET, READERS
from benchmarks.rounds import Spread, take_turns
from gristmill.dataset import encode_frame

PACKAGES = (
    *("array-record", "zstandard", "numpy", "grain"),
    *("tensorstore", "obstore", "gcsfs", "google-cloud-storage"),
)
# US dollars for a thousand reads of objects in one region, Standard class.
_PRICE_OF_THOUSAND_READS = 0.0004
_FILES = 8
_MOST_TEXT_BYTES = 10_000
LABELS = {
    "gristmill_global": "gristmill, global shuffle",
    "gristmill_block": "gristmill, block shuffle",
    "gristmill_client": "gristmill's client, 256 at once, bytes only",
    "grain_16": "Grain on gs://, 16 threads",
    "grain_64": "Grain on gs://, 64 threads",
    "gcsfs": "gcsfs `cat_ranges`, 256 at once, bytes only",
    "google_cloud_storage": "google-cloud-storage, 32 threads, bytes only",
    "tensorstore": "TensorStore, 256 at once, bytes only",
    "obstore": "obstore, 256 threads, bytes only",
}
# Group sizes by size of record. What knows nothing of chunks reads the same bytes
# whatever their size.
_GROUP_SIZES = {2_000: (1, 16), 100_000: (1,)}
# As many that few of a batch are neighbours by chance, as in real datasets.
_DATASET_RECORDS = {2_000: 131_072, 100_000: 8_192}
# What opens a dataset, or files of records; the others are given ranges.
_OPENS = ("gristmill_global", "gristmill_block", "grain_16", "grain_64")
_OF_GROUPS = ("gristmill_global", "gristmill_block")


def make_dataset(
    folder: pathlib.Path, *, record_bytes: int, records: int, group_size: int
) -> pathlib.Path:
    """Converts generated records; returns the dataset's directory."""
    name = f"r{record_bytes}-g{group_size}"
    inputs = folder / f"in-{name}"
    if record_bytes <= _MOST_TEXT_BYTES:
        c4_like.write_dataset(
            inputs,
            size_bytes=records * record_bytes,
            files=_FILES,
            mean_record_bytes=record_bytes,
        )
    else:
        _write_noise(inputs, record_bytes=record_bytes, records=records)
    output = folder / "bucket" / name
    command = [sys.executable, "-m", "gristmill", "convert"]
    command += [f"{inputs}/*.tfrecord-*", str(output), "--match-shards"]
    command += [f"--group-size={group_size}", "--compression=zstd:3", "--name=c4"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(inputs)
    return output


def _write_noise(inputs: pathlib.Path, *, record_bytes: int, records: int) -> None:
    """Writes records that do not compress, as images do not."""
    inputs.mkdir()
    for number in range(_FILES):
        noise = random.Random(number)
        path = inputs / f"noise.tfrecord-{number:05d}-of-{_FILES:05d}"
        with path.open("wb") as file:
            for _ in range(records // _FILES):
                file.write(encode_frame(noise.randbytes(record_bytes)))


@contextmanager
def serve(
    folder: pathlib.Path, latency_ms: float, connect_ms: float, *more: str
) -> Iterator[str]:
    """Serves a directory as a bucket; gives its address."""
    command = [sys.executable, "-m", "benchmarks.gcs_server", str(folder)]
    command += [f"--bucket={BUCKET}", f"--latency-ms={latency_ms}"]
    command += [f"--connect-ms={connect_ms}", *more]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


def run_reader(
    reader: str, *, url: str, dataset: pathlib.Path, records: int, timeout: float
) -> dict[str, Any]:
    """Runs a reader in a process of its own; what went wrong is under `error`."""
    command = [sys.executable, "-m", "benchmarks.gcs_readers", reader]
    command += ["--url", url, "--local", str(dataset), "--records", str(records)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"reader": reader, "error": f"killed after {timeout:g} s"}
    if done.returncode:
        return {"reader": reader, "error": done.stderr.strip()[-500:]}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def run_all(args: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Runs every reader on every dataset at every latency."""
    runs: list[dict[str, Any]] = []
    for record_bytes, count in args.records.items():
        for group_size in args.group_sizes or _GROUP_SIZES[record_bytes]:
            readers = [r for r in args.readers if group_size == 1 or r in _OF_GROUPS]
            if not readers:
                continue
            dataset = make_dataset(
                folder,
                record_bytes=record_bytes,
                records=4_096 if args.quick else _DATASET_RECORDS[record_bytes],
                group_size=group_size,
            )
            files = list(dataset.glob("*.array_record-*"))
            stored = sum(file.stat().st_size for file in files)
            manifest = json.loads((dataset / "dataset.json").read_text())
            for latency_ms, connect_ms in itertools.product(
                args.latency_ms, args.connect_ms
            ):
                about = {
                    "record_bytes": record_bytes,
                    "group_size": group_size,
                    "latency_ms": latency_ms,
                    "connect_ms": connect_ms,
                    "stored_bytes_per_record": stored / manifest["records"],
                }
                with serve(folder / "bucket", latency_ms, connect_ms) as url:
                    for number, reader in take_turns(readers, args.rounds):
                        measured = run_reader(
                            reader,
                            url=url,
                            dataset=dataset,
                            records=_records_for(reader, record_bytes, count),
                            timeout=args.timeout_seconds,
                        )
                        measured |= about | {"round": number}
                        say(_line(measured))
                        runs.append(measured)
            shutil.rmtree(dataset)
    environment = describe_environment(PACKAGES)
    settings = {"rounds": args.rounds}
    return {"environment": environment, "settings": settings, "runs": runs}


def _records_for(reader: str, record_bytes: int, count: int) -> int:
    if reader == "gristmill_block":
        return _DATASET_RECORDS[record_bytes]
    return max(count // 4 if reader.startswith(("grain", "google")) else count, 64)


def _line(run: dict[str, Any]) -> str:
    head = (
        f"{run['record_bytes']:>6} B g{run['group_size']:<2} {run['latency_ms']:g} ms"
    )
    if "error" in run:
        return f"{head} {run['reader']}: {run['error'].splitlines()[-1][:200]}"
    rate = run["records"] / run["wall_seconds"]
    return (
        f"{head} {run['reader']:20} {rate:8,.0f} records/s, "
        f"{_cpu(run):6,.0f} us CPU, "
        f"{run['server_requests'] / run['records']:.3f} requests, "
        f"server {run['server_cpu_seconds'] / run['wall_seconds']:.0%} busy"
    )


def report(results: dict[str, Any]) -> str:
    """Returns the results as Markdown."""
    runs = [run for run in results["runs"] if "error" not in run]
    settings = results["settings"]
    parts = [
        "# Reading from a bucket\n",
        "Random records of a dataset in a bucket, one process, by `python -m "
        "benchmarks.gcs`; benchmarks/README.md tells how it measures. "
        f"{describe_machine(results['environment'])} The reader and the server share "
        "the processors. "
        f"Medians of {settings['rounds']} rounds (lowest..highest). The bucket is a "
        "server on loopback with the latency given, and with that of a new connection "
        "where it is named; 100 MB/s for a connection, 1.25 GB/s for all; no TLS, "
        "whose processor time comes on top for readers that make many connections. "
        '"Open" and "first batch" contain imports, indexes and connections. Then '
        "records are counted; with a block shuffle, those of the second epoch.\n",
        *(f"{image}\n" for image in figures.images("gcs", results)),
    ]
    tables = sorted({_table_of(run) for run in runs})
    for key in tables:
        own = [r for r in runs if _table_of(r) == key]
        parts.append(_table(own, [r for r in runs if _table_of(r) == (*key[:3], 1)]))
    errors = sorted(
        {(r["reader"], r["error"]) for r in results["runs"] if "error" in r}
    )
    parts += [f"{reader} failed:\n\n```\n{error}\n```\n" for reader, error in errors]
    return "\n".join(parts)


def _table_of(run: dict[str, Any]) -> tuple[int, float, float, int]:
    return (
        run["record_bytes"],
        run["latency_ms"],
        run["connect_ms"],
        run["group_size"],
    )


def _table(runs: list[dict[str, Any]], lone: list[dict[str, Any]]) -> str:
    first = runs[0]
    lines = [
        f"## Records of {first['record_bytes'] / 1000:g} KB, "
        f"{first['latency_ms']:g} ms"
        + (f", {first['connect_ms']:g} ms a connection" * bool(first["connect_ms"]))
        + f", group size {first['group_size']}\n",
        f"A record occupies {first['stored_bytes_per_record']:,.0f} bytes.\n",
        "| reader | records/s | to Grain, 64 threads | requests a record | bytes a "
        "record | CPU a record, µs | open, s | first batch, s | connections | server "
        "busy | $ a million records |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    grain = {r["round"]: _rate(r) for r in lone if r["reader"] == "grain_64"}
    for reader, label in LABELS.items():
        own = [run for run in runs if run["reader"] == reader]
        if own:
            lines.append("| " + " | ".join([label, *_cells(own, grain)]) + " |")
    lines += _beside_client(runs)
    return "\n".join(lines) + "\n"


def _beside_client(runs: list[dict[str, Any]]) -> list[str]:
    """Returns the cost of feeds beside the client that they read with."""
    client = {r["round"]: r for r in runs if r["reader"] == "gristmill_client"}
    lines = []
    for reader in ("gristmill_global", "gristmill_block"):
        pairs = [
            (run, client[run["round"]])
            for run in runs
            if run["reader"] == reader and run["round"] in client
        ]
        if pairs:
            rates = Spread.of([_rate(run) / _rate(bare) for run, bare in pairs])
            costs = Spread.of([_cpu(run) / _cpu(bare) for run, bare in pairs])
            lines.append(
                f"- {LABELS[reader].partition(', ')[2]} beside gristmill's client: "
                f"{rates.show(2)} of its records/s, {costs.show(2)} of its CPU"
            )
    return ["", *lines] if lines else []


def _rate(run: dict[str, Any]) -> float:
    rate: float = run["records"] / run["wall_seconds"]
    return rate


def _cpu(run: dict[str, Any]) -> float:
    """Returns microseconds a record."""
    cost: float = run["cpu_seconds"] / run["records"] * 1e6
    return cost


def _cells(runs: list[dict[str, Any]], grain: dict[int, float]) -> list[str]:
    """Returns a row of the table, from the runs of one reader."""

    def middle(name: str, per: str | None = None) -> float:
        return statistics.median(run[name] / (run[per] if per else 1) for run in runs)

    ratios = [_rate(run) / grain[run["round"]] for run in runs if run["round"] in grain]
    cpu = [_cpu(run) for run in runs]
    requests = middle("server_requests", "records")
    return [
        Spread.of([_rate(run) for run in runs]).show(0),
        Spread.of(ratios).show(1) if ratios else "",
        f"{requests:.3f}",
        f"{middle('server_sent_bytes', 'records'):,.0f}",
        Spread.of(cpu).show(0),
        f"{middle('open_seconds'):.2f}" if runs[0]["reader"] in _OPENS else "",
        f"{middle('first_batch_seconds'):.2f}",
        f"{middle('connections'):,.0f}",
        f"{middle('server_cpu_seconds', 'wall_seconds'):.0%}",
        f"{requests * 1000 * _PRICE_OF_THOUSAND_READS:.2f}",
    ]


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options, with the defaults of the full or the quick benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gcs", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="does everything run?")
    parser.add_argument("--rounds", type=int, help="times that each runs (5)")
    parser.add_argument("--latency-ms", type=float, nargs="+", help="(20)")
    parser.add_argument("--connect-ms", type=float, nargs="+", default=[0], help="(0)")
    parser.add_argument("--readers", nargs="+", choices=sorted(READERS), help="(all)")
    parser.add_argument("--timeout-seconds", type=float, default=120)
    parser.add_argument("--work-dir", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    args = parser.parse_args(argv)
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.latency_ms = args.latency_ms or ([5] if args.quick else [20])
    args.group_sizes = [1] if args.quick else None
    args.records = {2_000: 512} if args.quick else {2_000: 12_288, 100_000: 8_192}
    args.readers = args.readers or (
        ["gristmill_global", "gristmill_client"] if args.quick else list(READERS)
    )
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and writes its reports."""
    args = parse_arguments(argv)
    with tempfile.TemporaryDirectory(dir=args.work_dir) as folder:
        results = run_all(args, pathlib.Path(folder))
    write_reports(args, "gcs", results, report(results))
    ours = [r for r in results["runs"] if r["reader"].startswith("gristmill")]
    return int(any("error" in run for run in ours))


if __name__ == "__main__":
    sys.exit(main())
