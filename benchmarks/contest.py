"""What benchmarks of contestants have in common: options, environment, the reports."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

_PACKAGES = (
    *("apache-beam", "array-record", "tensorflow", "tensorflow-datasets"),
    *("zstandard", "numpy"),
)


def describe_environment(packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """Returns what the numbers depend on: processors, Python, versions."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "cpu_count": len(os.sched_getaffinity(0)),
        "cpu": _processor_name(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": versions,
    }


def _processor_name() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE)
        if match:
            return match[1]
    return platform.machine()


def say(text: str) -> None:
    """Prints how far the benchmark is."""
    print(text, file=sys.stderr, flush=True)


def parse_contest(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    contestants: Collection[str],
    *,
    quick: Mapping[str, Any],
    full: Mapping[str, Any],
) -> argparse.Namespace:
    """Adds the options that all have to a benchmark's own, and parses.

    Where they are not given, options are as `full` says, or `quick` with `--quick`.
    """
    parser.add_argument(
        "--contestants",
        nargs="+",
        choices=sorted(contestants),
        metavar="NAME",
        help="of " + ", ".join(contestants) + " (all)",
    )
    parser.add_argument(
        "--work-dir",
        type=pathlib.Path,
        help="where all that is written goes for the time being (the system's)",
    )
    parser.add_argument("--json", type=pathlib.Path, help="write every run here")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the report here")
    parser.add_argument("--plot", type=pathlib.Path, help="draw the figure here")
    args = parser.parse_args(argv)
    for name, value in (quick if args.quick else full).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    return args


def run_contest(
    benchmark_type: Callable[[argparse.Namespace, pathlib.Path], Any],
    args: argparse.Namespace,
    report: Any,
) -> int:
    """Runs a benchmark and writes its reports; 1 where gristmill itself failed.

    `report` is the module that renders and draws the results.
    """
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="bench-") as work_dir:
        benchmark = benchmark_type(args, pathlib.Path(work_dir))
        benchmark.run()
    results = benchmark.results
    text = report.render_markdown(results)
    print(text)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(text)
    if args.plot:
        report.draw_plot(results, args.plot)
    if benchmark.failed:
        say("failed: " + ", ".join(benchmark.failed))
    return 1 if benchmark.failed else 0
