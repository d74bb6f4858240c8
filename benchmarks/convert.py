"""Conversion of TFRecords to ArrayRecord: gristmill, its peers and a bare loop.

    python -m benchmarks.convert --markdown docs/performance/convert.md
    python -m benchmarks.convert --quick

Every contestant is a whole process, a new one for each run, with start-up and
imports counted; all read the same files and write with the same options
(group_size:1, zstd:3). One round runs every contestant on every input, and rounds
begin with a different contestant each, so that a slow minute of the machine does
not hit the same one every time. benchmarks/README.md explains the result.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import c4_like, convert_report, process_cost
from benchmarks.contest import describe_environment, parse_contest, run_contest, say
from benchmarks.contestants import CONTESTANTS, Contestant, Input
from benchmarks.rounds import take_turns

_STARTUP_BYTES = 10_000  # Two files of a few records: the cost of nothing.
_STARTUP_FILES = 2
_OUTPUT_NAME = re.compile(r"\.array_?record(-\d{5}-of-\d{5})?$")
# TensorFlow would spend seconds and memory on a GPU that no contestant uses.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1"}


def count_output_records(output: pathlib.Path) -> tuple[int, int]:
    """Returns the records and the bytes of the ArrayRecord files in a directory."""
    from array_record.python.array_record_module import ArrayRecordReader

    records = size_bytes = 0
    for path in sorted(output.rglob("*")):
        if path.is_file() and _OUTPUT_NAME.search(path.name):
            reader = ArrayRecordReader(str(path))
            records += reader.num_records()
            size_bytes += path.stat().st_size
            reader.close()
    return records, size_bytes


def run_once(
    contestant: Contestant, source: Input, output: pathlib.Path, timeout_seconds: float
) -> tuple[dict[str, Any], str | None]:
    """Converts once, checks what was written and deletes it.

    Returns:
      The measurements, and what went wrong or None.
    """
    os.sync()  # Nobody pays for what the one before left to be written.
    output.parent.mkdir(exist_ok=True)
    cost = process_cost.measure_command(
        contestant.command(source, output),
        timeout_seconds=timeout_seconds,
        environment=_ENVIRONMENT,
    )
    error = None
    records = size_bytes = 0
    if cost.timed_out:
        error = f"killed after {timeout_seconds:g} s\n{cost.output}"
    elif cost.exit_code:
        error = f"exit code {cost.exit_code}\n{cost.output}"
    else:
        records, size_bytes = count_output_records(output)
        if records != source.records:
            error = (
                f"exit code 0, but wrote {records:,} of {source.records:,} records\n"
                f"{cost.output}"
            )
    shutil.rmtree(output, ignore_errors=True)
    measured = dataclasses.asdict(cost)
    del measured["output"]
    return measured | {"output_records": records, "output_bytes": size_bytes}, error


def imports_rss_bytes(contestant: Contestant) -> int:
    """Returns the resident memory of a Python that has imported and done nothing."""
    program = (
        f"{contestant.imports}\n"
        "import psutil\nprint('rss', psutil.Process().memory_info().rss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **_ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return int(done.stdout.rsplit("rss", 1)[1])


class Benchmark:
    """Runs contestants over inputs and keeps what came of it.

    Attributes:
      results: what `--json` writes and `convert_report` reads.
    """

    def __init__(self, args: argparse.Namespace, work_dir: pathlib.Path):
        """Prepares, runs nothing.

        Args:
          args: of `parse_arguments`.
          work_dir: where inputs and outputs go for the time being.
        """
        self._args = args
        self._work_dir = work_dir
        self._inputs = 0
        self.results: dict[str, Any] = {
            "environment": describe_environment(),
            "settings": {
                "seed": args.seed,
                "rounds": args.rounds,
                "files": args.files,
                "writer_options": "group_size:1,zstd:3",
                "binary": args.binary,
            },
            "contestants": {},
            "runs": [],
        }

    def run(self) -> None:
        """Runs everything the command line asked for."""
        args = self._args
        for key in args.contestants:
            self._enter(key)
        inputs = [self._generate("startup", _STARTUP_BYTES, _STARTUP_FILES)]
        if args.small_bytes:
            inputs.append(self._generate("small", args.small_bytes, args.files))
        inputs.append(self._generate("main", args.bytes, args.files))
        for number, key in take_turns(args.contestants, args.rounds):
            for source in inputs:
                self._measure(key, source, number)
        for source in inputs:
            shutil.rmtree(source.directory)
        for size_bytes in args.memory_bytes:
            source = self._generate("memory", size_bytes, args.files)
            for key in args.contestants:
                if key.startswith("gristmill"):
                    self._measure(key, source, 0)
            shutil.rmtree(source.directory)

    @property
    def failed(self) -> list[str]:
        """The runs of gristmill itself that failed."""
        return [
            key
            for key, entry in self.results["contestants"].items()
            if key.startswith("gristmill") and entry["status"] != "ok"
        ]

    def _enter(self, key: str) -> None:
        contestant = CONTESTANTS[key]
        entry: dict[str, Any] = {"label": contestant.label, "status": "ok"}
        self.results["contestants"][key] = entry
        missing = [p for p in contestant.packages if not importlib.util.find_spec(p)]
        if missing:
            entry |= {"status": "not installed", "error": ", ".join(missing)}
            return
        entry["imports_rss_bytes"] = imports_rss_bytes(contestant)

    def _generate(self, kind: str, size_bytes: int, files: int) -> Input:
        self._inputs += 1
        directory = self._work_dir / f"input-{self._inputs}"
        say(f"writing {size_bytes / 1e6:,.2f} MB of TFRecords ({kind})")
        written = c4_like.write_dataset(
            directory,
            size_bytes=size_bytes,
            files=files,
            seed=self._args.seed,
            binary=self._args.binary,
        )
        return Input(kind=kind, directory=directory, files=tuple(written))

    def _measure(self, key: str, source: Input, round_number: int) -> None:
        entry = self.results["contestants"][key]
        if entry["status"] != "ok":
            return
        measured, error = run_once(
            CONTESTANTS[key],
            source,
            self._work_dir / "output" / key,
            self._args.timeout_seconds,
        )
        say(
            f"round {round_number + 1} {source.kind:7} {key:30} "
            f"{measured['wall_seconds']:7.2f} s, {measured['cpu_seconds']:7.2f} CPU s, "
            f"{measured['peak_tree_bytes'] / 1e6:6,.0f} MB"
        )
        if error:
            # A peer that fails once is not asked again; the report quotes it.
            entry |= {"status": "crashed", "error": error, "crashed_on": source.kind}
            say(f"{key} crashed: {error.splitlines()[-1]}")
            return
        self.results["runs"].append(
            {
                "contestant": key,
                "round": round_number,
                "kind": source.kind,
                "input_bytes": source.size_bytes,
                "input_records": source.records,
                **measured,
            }
        )


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options, with the defaults of the full or the quick benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convert", description=__doc__.splitlines()[0]
    )
    size = c4_like.parse_size
    parser.add_argument(
        "--binary", action="store_true", help="records of 100 KB, not text"
    )
    parser.add_argument("--bytes", type=size, help="input of the main runs (1GB)")
    parser.add_argument(
        "--small-bytes", type=size, help="input of the small runs, 0 for none (10MB)"
    )
    parser.add_argument(
        "--memory-bytes",
        type=size,
        nargs="*",
        help="inputs to show how gristmill's memory grows (500MB 2GB)",
    )
    parser.add_argument("--files", type=int, help="files of each input (8)")
    parser.add_argument("--seed", type=int, default=0, help="of the text (0)")
    parser.add_argument(
        "--timeout-seconds", type=float, default=3600, help="of one run (3600)"
    )
    quick: dict[str, Any] = {
        "bytes": 4_000_000,
        "small_bytes": 0,
        "memory_bytes": [],
        "files": 2,
        "rounds": 1,
        "contestants": ["gristmill_1", "bare"],
    }
    full: dict[str, Any] = {
        "bytes": 10**9,
        "small_bytes": 10**7,
        "memory_bytes": [5 * 10**8, 2 * 10**9],
        "files": 8,
        "rounds": 5,
        "contestants": list(CONTESTANTS),
    }
    return parse_contest(parser, argv, CONTESTANTS, quick=quick, full=full)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and writes the report; 1 where gristmill itself failed."""
    return run_contest(Benchmark, parse_arguments(argv), convert_report)


if __name__ == "__main__":
    sys.exit(main())
