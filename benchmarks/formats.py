"""Inputs of other formats than TFRecord: gristmill, plain loops and Google's template.

    python -m benchmarks.formats --converter DIR \
        --json benchmarks/results/formats.json --markdown docs/performance/formats.md

The same rows of C4-like text lie in files of each format. Every contestant is a whole
process that makes ArrayRecord files of them, in rounds that alternate. `--converter` is
the folder `arrayrecord-converter` in a checkout of Google's DataflowTemplates. It takes
lines of text, runs on Beam's in-memory runner, and writes to a bucket on loopback.
The loops parse each row by itself, make a `tf.train.Example` of it with TensorFlow's
own class, write it with the official writer, and check nothing.
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
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import c4_like, figures, process_cost
from benchmarks.contest import (
    commit_of,
    describe_environment,
    describe_machine,
    parse_contest,
    say,
    write_reports,
)
from benchmarks.peers import WRITER_OPTIONS
from benchmarks.rounds import Spread, by_round, ratios, take_turns
from tests.support.gcs_process import GcsProcess

_FILES = 8
_BUCKET = "bench"
_PACKAGES = ("apache-beam", "array-record", "pyarrow", "tensorflow", "zstandard")
_LABELS = {
    "tfrecord": "gristmill convert, TFRecord",
    "jsonl": "gristmill convert, JSONL",
    "parquet": "gristmill convert, Parquet",
    "jsonl_loop": "plain loop: json, tf.train.Example, official writer",
    "parquet_loop": "plain loop: pyarrow, tf.train.Example, official writer",
    "google_text": "Google's arrayrecord-converter, lines of text",
}
_RATIOS = (  # How much longer the first takes than the second.
    ("jsonl", "tfrecord", "TFRecord over JSONL"),
    ("parquet", "tfrecord", "TFRecord over Parquet"),
    ("jsonl_loop", "jsonl", "JSONL over the plain loop"),
    ("parquet_loop", "parquet", "Parquet over the plain loop"),
    ("google_text", "jsonl", "JSONL over Google's template on lines"),
    ("google_text", "parquet", "Parquet over Google's template on lines"),
)


def write_inputs(directory: pathlib.Path, size_bytes: int, seed: int = 0) -> int:
    """Writes the same rows as TFRecord, JSONL and Parquet; returns how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for kind in ("tfrecord", "jsonl", "parquet"):
        (directory / kind).mkdir(parents=True)
    count = 0
    for number in range(_FILES):
        rows = []
        left = size_bytes // _FILES
        name = f"c4-{number:05}-of-{_FILES:05}"
        with (
            open(directory / "tfrecord" / f"{name}.tfrecord", "wb") as frames,
            open(directory / "jsonl" / f"{name}.jsonl", "w") as lines,
        ):
            for row in c4_like.generate_rows(seed=seed * 1000 + number):
                left -= frames.write(c4_like.frame_record(c4_like.encode_example(row)))
                rows.append({k.decode(): v.decode() for k, v in row.items()})
                lines.write(json.dumps(rows[-1]) + "\n")
                if left <= 0:
                    break
        pq.write_table(
            pa.Table.from_pylist(rows),
            directory / "parquet" / f"{name}.parquet",
            row_group_size=10_000,
        )
        count += len(rows)
    return count


def _examples(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    import tensorflow as tf

    train = tf.train
    for row in rows:
        features = {
            name: train.Feature(bytes_list=train.BytesList(value=[value.encode()]))
            for name, value in row.items()
        }
        example = train.Example(features=train.Features(feature=features))
        yield example.SerializeToString()


def _rows_of_jsonl(path: str) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _rows_of_parquet(path: str) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def run_loop(
    inputs: Sequence[str],
    output: str,
    read: Callable[[str], Iterator[dict[str, Any]]],
) -> None:
    """Converts each file into one output, row by row, with nothing around the loop."""
    from array_record.python.array_record_module import ArrayRecordWriter

    os.makedirs(output, exist_ok=True)
    for path in inputs:
        place = f"{output}/{os.path.basename(path)}.array_record"
        writer = ArrayRecordWriter(place, WRITER_OPTIONS)
        for record in _examples(read(path)):
            writer.write(record)
        writer.close()


def run_converter(checkout: str, pattern: str) -> None:
    """Runs Google's template, as it is, over lines of text."""
    sys.path.insert(0, checkout)
    import main as template  # type: ignore[import-not-found]

    template.run(
        [
            f"--input_path={pattern}",
            "--input_format=text",
            f"--output_destination=gs://{_BUCKET}/out/",
            "--runner=FnApiRunner",
        ],
        save_main_session=False,
    )


class Benchmark:
    """Runs the contestants in turns, and keeps what each run took.

    Args:
        work: Where inputs and outputs are for the time being.
        converter: The folder of Google's template, None to leave it out.
    """

    def __init__(self, work: pathlib.Path, converter: pathlib.Path | None):
        self._work = work
        self._converter = converter
        self.runs: list[dict[str, Any]] = []

    def prepare(self, size_bytes: int) -> None:
        """Writes the inputs."""
        say(f"writing {size_bytes / 1e6:,.0f} MB of records in each format")
        self._records = write_inputs(self._work / "in", size_bytes)
        self._size_bytes = size_bytes

    def _gristmill(self, kind: str, output: pathlib.Path) -> list[str]:
        source = self._work / "in" / kind
        return [
            *(sys.executable, "-m", "gristmill", "convert", str(source), str(output)),
            *("--workers=2", f"--num-shards={_FILES}"),
            *("--group-size=1", "--compression=zstd:3"),
        ]

    def _command(self, key: str, output: pathlib.Path) -> list[str]:
        if key in ("tfrecord", "jsonl", "parquet"):
            return self._gristmill(key, output)
        start = [sys.executable, "-m", "benchmarks.formats", "--peer", key]
        if key == "google_text":
            pattern = f"{self._work}/in/jsonl/*.jsonl"
            return [*start, str(self._converter), pattern]
        source = self._work / "in" / key.removesuffix("_loop")
        return [*start, str(output), *sorted(map(str, source.iterdir()))]

    def measure(self, key: str, round_number: int) -> None:
        """Runs one contestant once.

        Raises:
            RuntimeError: It failed, or did not write every row.
        """
        output = self._work / "out"
        os.sync()
        if key == "google_text":
            with GcsProcess(_BUCKET) as server:
                cost = process_cost.measure_command(
                    self._command(key, output),
                    environment={"STORAGE_EMULATOR_HOST": server.url},
                )
                # What is in the bucket is listed, and not read again.
                with urllib.request.urlopen(
                    f"{server.url}/storage/v1/b/{_BUCKET}/o?prefix=out/"
                ) as reply:
                    written = json.load(reply).get("items", [])
                found = self._records if len(written) == _FILES else 0
        else:
            cost = process_cost.measure_command(self._command(key, output))
            found = count_records(output)
        shutil.rmtree(output, ignore_errors=True)
        if cost.exit_code or found != self._records:
            raise RuntimeError(
                f"{key}: exit code {cost.exit_code}, {found:,} of {self._records:,} "
                f"records\n{cost.output}"
            )
        say(f"{round_number} {key:14} {cost.cpu_seconds:7.2f} CPU s")
        self.runs.append(
            {
                "contestant": key,
                "round": round_number,
                "bytes": self._size_bytes,
                "records": self._records,
                "cpu_seconds": cost.cpu_seconds,
                "wall_seconds": cost.wall_seconds,
                "peak_tree_bytes": cost.peak_tree_bytes,
            }
        )

    def clear(self) -> None:
        """Deletes the inputs."""
        shutil.rmtree(self._work / "in")


def count_records(output: pathlib.Path) -> int:
    """Returns the records of the ArrayRecord files in a directory."""
    from array_record.python.array_record_module import ArrayRecordReader

    records = 0
    for path in output.iterdir():
        if path.is_file() and "record" in path.name:
            reader = ArrayRecordReader(str(path))
            records += reader.num_records()
            reader.close()
    return records


def _ratio(runs: list[dict[str, Any]], slow: str, fast: str, what: str) -> str:
    """Returns how many times as long one took, round by round: median and range."""
    took = [by_round(runs, key, operator.itemgetter(what)) for key in (slow, fast)]
    return Spread.of(ratios(*took)).show(2)


def render(results: dict[str, Any]) -> str:
    """Returns the report as Markdown."""
    runs = results["runs"]
    rounds = [run for run in runs if run["round"]]
    size_bytes = rounds[0]["bytes"]
    lines = [
        "# Other formats",
        "",
        "By `python -m benchmarks.formats`; benchmarks/README.md tells how it "
        f"measures. {describe_machine(results['environment'])}",
        "",
        f"{size_bytes / 1e6:,.0f} MB of records, {rounds[0]['records']:,} rows, "
        f"{max(run['round'] for run in runs)} rounds; medians. "
        "For gristmill, two worker processes.",
        "",
        *(f"{image}\n" for image in figures.images("formats", results)),
        "| contestant | CPU s | MB per CPU s | wall s | peak memory, MB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for key, label in _LABELS.items():
        own = [run for run in rounds if run["contestant"] == key]
        if not own:
            continue
        middle = statistics.median(run["cpu_seconds"] for run in own)
        wall = statistics.median(run["wall_seconds"] for run in own)
        peak = max(run["peak_tree_bytes"] for run in own)
        lines.append(
            f"| {label} | {middle:.1f} | {size_bytes / 1e6 / middle:.1f} | {wall:.1f} "
            f"| {peak / 1e6:,.0f} |"
        )
    lines += ["", "| speed | by CPU time | by wall time |", "| --- | ---: | ---: |"]
    lines += [
        f"| {label} | {_ratio(rounds, slow, fast, 'cpu_seconds')} | "
        f"{_ratio(rounds, slow, fast, 'wall_seconds')} |"
        for slow, fast, label in _RATIOS
        if {slow, fast} <= {run["contestant"] for run in rounds}
    ]
    memory = [run for run in runs if not run["round"]]
    if memory:
        lines += ["", "| memory | MB of records | peak, MB |", "| --- | ---: | ---: |"]
        lines += [
            f"| {_LABELS[run['contestant']]} | {run['bytes'] / 1e6:,.0f} | "
            f"{run['peak_tree_bytes'] / 1e6:,.0f} |"
            for run in memory
        ]
    return "\n".join(lines) + "\n"


def describe(converter: pathlib.Path | None) -> dict[str, Any]:
    """Returns the conditions of the numbers, with the version of the converter."""
    environment = describe_environment(_PACKAGES)
    if converter is not None:
        environment["packages"]["arrayrecord-converter"] = commit_of(converter)
    return environment


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark, or one peer of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.formats", description=__doc__.splitlines()[0]
    )
    size = c4_like.parse_size
    parser.add_argument("--bytes", type=size, help="of records (500MB)")
    parser.add_argument(
        "--memory-bytes", type=size, nargs="*", default=[], help="to show memory"
    )
    parser.add_argument("--converter", type=pathlib.Path, help="Google's template")
    parser.add_argument("--peer", choices=sorted(_LABELS), help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    args = parse_contest(
        parser,
        argv,
        _LABELS,
        quick={"bytes": 200_000, "rounds": 1},
        full={"bytes": 500_000_000, "rounds": 5},
    )
    if args.peer == "google_text":
        run_converter(*args.arguments)
        return 0
    if args.peer:
        read = {"jsonl_loop": _rows_of_jsonl, "parquet_loop": _rows_of_parquet}
        run_loop(args.arguments[1:], args.arguments[0], read[args.peer])
        return 0
    keys = args.contestants or [
        key for key in _LABELS if key != "google_text" or args.converter is not None
    ]
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="formats-") as work:
        benchmark = Benchmark(pathlib.Path(work), args.converter)
        benchmark.prepare(args.bytes)
        for number, key in take_turns(keys, args.rounds):
            benchmark.measure(key, number + 1)
        benchmark.clear()
        for size_bytes in args.memory_bytes:
            benchmark.prepare(size_bytes)
            for key in ("jsonl", "parquet"):
                benchmark.measure(key, 0)
            benchmark.clear()
    results = {"environment": describe(args.converter), "runs": benchmark.runs}
    write_reports(args, "formats", results, render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
