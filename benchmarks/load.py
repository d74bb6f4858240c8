"""Reading ArrayRecord in random order: gristmill, Grain, array_record and tf.data.

    python -m benchmarks.load --markdown docs/performance/load.md
    python -m benchmarks.load --quick

Every contestant is a process of its own that reads the same shards: text of 2.2 KB and
binary records of 100 KB, one and sixteen to a chunk. Rounds begin with a different
contestant each. benchmarks/README.md explains the result.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import c4_like, load_report
from benchmarks.contest import describe_environment, parse_contest, run_contest, say
from benchmarks.load_contestants import CONTESTANTS, Contestant
from benchmarks.load_data import Shards, write_shards
from benchmarks.rounds import take_turns

PACKAGES = (
    "array-record",
    "grain",
    "tensorflow",
    "zstandard",
    "google-crc32c",
    "numpy",
)
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
_ERROR_LINES = 12


def run_once(
    key: str, work_dir: pathlib.Path, *, seconds: float, timeout_seconds: float
) -> tuple[list[dict[str, Any]], str | None]:
    """Lets a contestant read all datasets.

    Returns:
      A measurement for each dataset, and what went wrong or None.
    """
    command = [sys.executable, "-m", "benchmarks.load_contestants", key, str(work_dir)]
    environment = {
        **os.environ,
        **_ENVIRONMENT,
        "GRISTMILL_CACHE_DIR": f"{work_dir}/cache",
    }
    with subprocess.Popen(
        [*command, f"--seconds={seconds}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            return [], f"killed after {timeout_seconds:g} s"
        finally:
            # Its workers too, whatever became of it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    measured = [json.loads(line) for line in stdout.splitlines() if line[:1] == "{"]
    if process.returncode:
        lines = stderr.strip().splitlines()[-_ERROR_LINES:]
        return measured, "\n".join([f"exit code {process.returncode}", *lines])
    return measured, None


class Benchmark:
    """Runs contestants over datasets and keeps what came of it.

    Attributes:
      results: what `--json` writes and `load_report` reads.
    """

    def __init__(self, args: argparse.Namespace, work_dir: pathlib.Path):
        """Prepares, runs nothing.

        Args:
          args: of `parse_arguments`.
          work_dir: where the datasets go for the time being.
        """
        self._args, self._work_dir = args, work_dir
        self._checksums: dict[str, int] = {}
        self.results: dict[str, Any] = {
            "environment": describe_environment(PACKAGES),
            "settings": {
                "rounds": args.rounds,
                "worker_rounds": args.worker_rounds,
                "seconds": args.seconds,
            },
            "datasets": {},
            "contestants": {},
            "runs": [],
        }

    def run(self) -> None:
        """Runs everything the command line asked for."""
        args = self._args
        say("writing the datasets")
        for shards in write_shards(
            self._work_dir, text_bytes=args.text_bytes, binary_bytes=args.binary_bytes
        ):
            self._enter_dataset(shards)
        for key in args.contestants:
            self._enter(key, CONTESTANTS[key])
        for number, key in take_turns(args.contestants, args.rounds):
            if number < args.worker_rounds or not CONTESTANTS[key].workers:
                self._measure(key, number)

    @property
    def failed(self) -> list[str]:
        """The contestants of gristmill itself that failed."""
        return [
            key
            for key, entry in self.results["contestants"].items()
            if re.search("gristmill|plain|feed", key) and entry["status"] != "ok"
        ]

    def _enter_dataset(self, shards: Shards) -> None:
        self.results["datasets"][shards.name] = {
            "records": shards.records,
            "record_bytes": shards.record_bytes,
            "shard_bytes": sum(os.path.getsize(path) for path in shards.paths),
            "shards": len(shards.paths),
            "batch_size": shards.batch_size,
        }

    def _enter(self, key: str, contestant: Contestant) -> None:
        missing = [p for p in contestant.packages if not importlib.util.find_spec(p)]
        self.results["contestants"][key] = {
            "label": contestant.label,
            "status": "not installed" if missing else "ok",
            "error": ", ".join(missing) or None,
        }

    def _measure(self, key: str, round_number: int) -> None:
        entry = self.results["contestants"][key]
        if entry["status"] != "ok":
            return
        measured, error = run_once(
            key,
            self._work_dir,
            seconds=self._args.seconds,
            timeout_seconds=self._args.timeout_seconds,
        )
        for item in measured:
            self.results["runs"].append(
                {"contestant": key, "round": round_number, **item}
            )
            error = error or self._compare(item)
        shown = [
            f"{item['dataset']} {item['records'] / item['wall_seconds']:,.0f}/s"
            for item in measured
        ]
        say(f"round {round_number + 1} {key:20} {', '.join(shown)}")
        if error:
            # A peer that fails once is not asked again; the report quotes it.
            entry |= {"status": "failed", "error": error}
            say(f"{key} failed: {error.splitlines()[-1]}")

    def _compare(self, measured: dict[str, Any]) -> str | None:
        """Says whether a contestant has read other records than the first one did."""
        name, checksum = measured["dataset"], measured["checksum"]
        if checksum is None or checksum == self._checksums.setdefault(name, checksum):
            return None
        return f"has read other records of {name} than others did"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options, with the defaults of the full or the quick benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load", description=__doc__.splitlines()[0]
    )
    size = c4_like.parse_size
    parser.add_argument("--text-bytes", type=size, help="of text records (100MB)")
    parser.add_argument("--binary-bytes", type=size, help="of binary records (150MB)")
    parser.add_argument(
        "--worker-rounds",
        type=int,
        help="times that those with worker processes run, which are slow to start (1)",
    )
    parser.add_argument("--seconds", type=float, help="of each measurement (0.6)")
    parser.add_argument(
        "--timeout-seconds", type=float, default=300, help="of one process (300)"
    )
    quick: dict[str, Any] = {
        "text_bytes": 2_000_000,
        "binary_bytes": 4_000_000,
        "rounds": 1,
        "worker_rounds": 1,
        "seconds": 0.1,
        "contestants": [key for key, c in CONTESTANTS.items() if not c.workers],
    }
    full: dict[str, Any] = {
        "text_bytes": 10**8,
        "binary_bytes": 15 * 10**7,
        "rounds": 3,
        "worker_rounds": 1,
        "seconds": 0.6,
        "contestants": list(CONTESTANTS),
    }
    return parse_contest(parser, argv, CONTESTANTS, quick=quick, full=full)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and writes the report; 1 where gristmill itself failed."""
    return run_contest(Benchmark, parse_arguments(argv), load_report)


if __name__ == "__main__":
    sys.exit(main())
