"""The common part of contests: options, environment, the reports."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from benchmarks import figures

_PACKAGES = (
    *("apache-beam", "array-record", "tensorflow", "tensorflow-datasets"),
    *("zstandard", "numpy"),
)


def describe_environment(packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """Returns the conditions of the numbers: the day, processors, Python, versions."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "cpu": _processor_name(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": versions,
    }


def commit_of(checkout: pathlib.Path | str) -> str:
    """Returns the commit of a checkout, short, as the version of what is in it."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.check_output(command, text=True).strip()


def version_in(python: pathlib.Path | str, package: str) -> str:
    """Returns the version of a package in the environment of another Python."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.check_output([str(python), "-c", code], text=True).strip()


def describe_machine(environment: Mapping[str, Any]) -> str:
    """Returns a line of what `describe_environment` returned."""
    packages = ", ".join(f"{k} {v}" for k, v in environment["packages"].items())
    return (
        f"Measured on {environment['date']}; {environment['cpu_count']} processors "
        f"({environment['cpu']}); Python {environment['python']}; {packages}."
    )


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
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument(
        "--rounds", type=int, help=f"how often each runs ({full['rounds']})"
    )
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
    args = parser.parse_args(argv)
    for name, value in (quick if args.quick else full).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    return args


def write_reports(
    args: argparse.Namespace, name: str, results: Mapping[str, Any], text: str
) -> None:
    """Prints the report, and writes it and every run where the options say.

    The figures of the report, which `name` says, go beside it. Where they are
    kept, the pages of all reports are made again.
    """
    from benchmarks import reports

    print(text)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(text)
        figures.write(name, results, args.markdown.parent)
    if args.json and args.markdown and len(args.json.absolute().parents) > 2:
        root = args.json.absolute().parents[2]
        kept = root / reports.RESULTS, root / reports.PAGES
        if kept == (args.json.absolute().parent, args.markdown.absolute().parent):
            reports.write_all(root)


def write_between(path: pathlib.Path, marks: tuple[str, str], text: str) -> None:
    """Replaces what is between two marks in a document.

    Raises:
        ValueError: The document does not have both marks.
    """
    path.write_text(replace_between(path, marks, text), encoding="utf-8")


def replace_between(path: pathlib.Path, marks: tuple[str, str], text: str) -> str:
    """Returns a document with another text between two marks.

    Raises:
        ValueError: The document does not have both marks.
    """
    document = path.read_text(encoding="utf-8")
    begin = document.index(marks[0]) + len(marks[0])
    end = document.index(marks[1], begin)
    return f"{document[:begin]}\n{text.rstrip()}\n{document[end:]}"


def run_contest(
    benchmark_type: Callable[[argparse.Namespace, pathlib.Path], Any],
    args: argparse.Namespace,
    report: Any,
) -> int:
    """Runs a benchmark and writes its reports; 1 where gristmill itself failed.

    `report` is the module that names and renders the results.
    """
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="bench-") as work_dir:
        benchmark = benchmark_type(args, pathlib.Path(work_dir))
        benchmark.run()
    results = benchmark.results
    text = report.render_markdown(results)
    write_reports(args, report.name_of(results), results, text)
    if benchmark.failed:
        say("failed: " + ", ".join(benchmark.failed))
    return 1 if benchmark.failed else 0
