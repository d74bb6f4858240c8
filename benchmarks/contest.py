"""Contests: programs do the same work in turns, and what each took is compared.

A contest is a module with a `Contest` and the programs that it measures. Each run is a
process of its own; every round begins with another contestant, so that a slow minute of
the machine does not hit the same one each time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from benchmarks import c4_like, report

_T = TypeVar("_T")
_ERROR_LINES = 12
# No contestant uses a GPU or threads of its own in a library.
_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A program that takes part. The keys of gristmill's own begin with `gristmill`.

    Attributes:
        label: For people.
        packages: Modules that must be there.
        option: The option of the contest without which it takes no part.
        bound: Whether it does less work than the others.
    """

    label: str
    packages: tuple[str, ...] = ()
    option: str = ""
    bound: bool = False


@dataclasses.dataclass(frozen=True)
class Peer:
    """A line of the page of peers.

    Attributes:
        name: Name of the peer.
        package: Whose version is told.
        compared: What both do.
        ours: Key of gristmill's contestant.
        theirs: Key of the peer's.
        case: In which both run.
        in_short: Whether the README has it, too.
    """

    name: str
    package: str
    compared: str
    ours: str
    theirs: str
    case: str = ""
    in_short: bool = False


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a contest: its type, its value, that of `--quick`, and its help."""

    kind: Callable[[str], Any]
    full: Any
    quick: Any
    help: str


class Contest:
    """Programs that do the same work, and how the work is counted.

    Attributes:
        name: Name of the module, the runs and the page.
        title: Title of the page.
        about: What is done, in a paragraph.
        unit: Of the work of a run.
        reference: Contestants that others are compared with: the first that ran.
        contestants: Who takes part, by key.
        columns: More of a run that the page shows: its key, with a label.
        options: Options of the contest's own.
        packages: Whose versions are kept.
        peers: What the page of peers says of this contest.
        args: The command line.
        work: A folder for the time being.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    unit: ClassVar[str] = "MB"
    reference: ClassVar[Sequence[str]]
    contestants: ClassVar[Mapping[str, Contestant]]
    columns: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[Mapping[str, Option]] = {}
    packages: ClassVar[Sequence[str]] = ()
    peers: ClassVar[Sequence[Peer]] = ()

    def __init__(self, args: argparse.Namespace, work: pathlib.Path):
        self.args, self.work = args, work

    def cases(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Makes the input of each case, and yields its name and who takes part."""
        yield "", [*self.contestants]

    def measure(self, case: str, key: str) -> dict[str, Any]:
        """Runs a contestant once; returns its cost, and its `work`.

        Raises:
            RuntimeError: The contestant failed, or did not do the work.
        """
        raise NotImplementedError

    def versions(self) -> dict[str, str]:
        """Returns the versions in other environments, and maybe of `python`."""
        return {}

    def program(self, name: str, *arguments: object) -> list[str]:
        """Returns the command of a program of the contest's module."""
        start = [sys.executable, "-m", f"benchmarks.{self.name}", "--program", name]
        return [*start, *map(str, arguments)]

    def run(self, command: Sequence[object], **options: Any) -> dict[str, Any]:
        """Runs a command; what it prints as JSON comes before what is measured.

        Raises:
            RuntimeError: Its exit code is not 0.
        """
        from benchmarks.cost import measure_command

        os.sync()
        variables = _VARIABLES | options.pop("variables", {})
        words = [str(word) for word in command]
        cost = measure_command(words, variables=variables, **options)
        if cost.exit_code:
            lines = (cost.stdout + cost.stderr).strip().splitlines()[-_ERROR_LINES:]
            raise RuntimeError("\n".join([f"exit code {cost.exit_code}", *lines]))
        said = [line for line in cost.stdout.splitlines() if line.startswith("{")]
        measured = {
            "cpu_seconds": cost.cpu_seconds,
            "wall_seconds": cost.wall_seconds,
            "peak_bytes": cost.peak_bytes,
        }
        return measured | (json.loads(said[-1]) if said else {})


def gristmill(*arguments: object) -> list[str]:
    """Returns a command of gristmill, by this very interpreter."""
    return [sys.executable, "-m", "gristmill", *map(str, arguments)]


def make(*arguments: object) -> None:
    """Runs a command of gristmill that is not measured."""
    subprocess.run(gristmill(*arguments), check=True, stdout=subprocess.DEVNULL)


def expect(found: object, expected: object, what: str) -> None:
    """Raises RuntimeError unless a contestant has done its work."""
    if found != expected:
        raise RuntimeError(f"{what}: got {found}, expected {expected}")


def take_turns(contestants: Sequence[_T], rounds: int) -> Iterator[tuple[int, _T]]:
    """Yields the number of each round, from 0 on, with each contestant."""
    for number in range(rounds):
        turn = number % len(contestants)
        for contestant in [*contestants[turn:], *contestants[:turn]]:
            yield number, contestant


def _below(process: int) -> Iterator[int]:
    """Yields the processes below one. An environment of a peer may lack psutil."""
    for task in pathlib.Path("/proc", str(process), "task").glob("*/children"):
        with contextlib.suppress(OSError):  # Threads end meanwhile.
            for child in map(int, task.read_text().split()):
                yield child
                yield from _below(child)


def tree_cpu_seconds() -> float:
    """Returns the CPU time so far of this process and of all below it."""
    ticks = 0
    for process in _below(os.getpid()):
        with contextlib.suppress(OSError):
            stat = pathlib.Path("/proc", str(process), "stat").read_text()
            # User and system time of its own, and of children that have ended.
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    below = ticks / os.sysconf("SC_CLK_TCK") + ended.ru_utime + ended.ru_stime
    return time.process_time() + below


def steadily(step: Callable[[], float], *, warm: float, seconds: float) -> Any:
    """Measures a program that goes on and on.

    Args:
        step: Does some work, and returns how much.
        warm: Work to do before it counts: what was read ahead, at least.
        seconds: How long it counts.

    Returns:
        The work, with the CPU and wall seconds of this process and of those below it.
    """
    while warm > 0:
        warm -= step()
    cpu, begin, work = tree_cpu_seconds(), time.perf_counter(), 0.0
    while not work or time.perf_counter() < begin + seconds:
        work += step()
    wall = time.perf_counter() - begin
    cpu = tree_cpu_seconds() - cpu
    return {"work": work, "cpu_seconds": cpu, "wall_seconds": wall, "peak_bytes": None}


def describe_environment(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the conditions of the numbers: the day, processors, Python, versions."""
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    info = pathlib.Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "cpu": found[1] if found else platform.machine(),
        "python": platform.python_version(),
        "packages": versions,
    }


def version_in(python: object, package: str) -> str:
    """Returns the version of a package in the environment of another Python."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.check_output([str(python), "-c", code], text=True).strip()


def commit_in(checkout: object) -> str:
    """Returns the commit of a checkout, such as `1a2b3c4d5e6f`."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.check_output(command, text=True).strip()


def say(text: str) -> None:
    """Prints how far the contest is."""
    print(text, file=sys.stderr, flush=True)


def _parse(contest: type[Contest], argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{contest.name}", description=contest.about
    )
    options = {"rounds": Option(int, 5, 1, "how often each runs"), **contest.options}
    for name, option in options.items():
        shown = "" if option.full is None else f" ({option.full})"
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=option.kind, help=option.help + shown)
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument(
        *("--contestants", "-c"), nargs="+", choices=sorted(contest.contestants)
    )
    parser.add_argument("--cases", nargs="+", help="only these")
    parser.add_argument("--work-dir", help="for what is written for the time being")
    parser.add_argument("--json", type=pathlib.Path, help="where the runs are kept")
    args = parser.parse_args(argv)
    for name, option in options.items():
        if getattr(args, name) is None:
            setattr(args, name, option.quick if args.quick else option.full)
    return args


def _takes_part(args: argparse.Namespace, key: str, contestant: Contestant) -> bool:
    if args.contestants and key not in args.contestants:
        return False
    missing = [
        each for each in contestant.packages if not importlib.util.find_spec(each)
    ]
    if contestant.option and getattr(args, contestant.option) is None:
        missing.append(f"--{contestant.option}")
    if missing:
        say(f"{key} takes no part without {', '.join(missing)}")
    return not missing


def hold(contest: Contest) -> dict[str, Any]:
    """Runs all rounds of all cases; a contestant that fails is not asked again."""
    args, kind = contest.args, type(contest)
    runs, failed = [], {}
    known = {k for k, c in contest.contestants.items() if _takes_part(args, k, c)}
    for case, keys in contest.cases():
        if args.cases and case not in args.cases:
            continue
        present = [key for key in keys if key in known]
        for number, key in take_turns(present, args.rounds) if present else ():
            if key in failed:
                continue
            try:
                run = contest.measure(case, key)
            except RuntimeError as error:
                failed[key] = str(error)
                say(f"{key} failed: {error}")
                continue
            runs.append({"case": case, "contestant": key, "round": number, **run})
            speed = run["work"] / run["cpu_seconds"]
            say(f"{number + 1} {case} {key}: {speed:,.2f} {kind.unit} per CPU second")
    environment = describe_environment(kind.packages)
    versions = contest.versions()
    environment["python"] = versions.pop("python", environment["python"])
    environment["packages"] |= versions
    fields = ("name", "title", "about", "unit", "reference", "columns")
    return {
        **{field: getattr(kind, field) for field in fields},
        "contestants": {
            key: {"label": each.label, "bound": each.bound}
            for key, each in kind.contestants.items()
        },
        "peers": [dataclasses.asdict(peer) for peer in kind.peers],
        "environment": environment,
        "rounds": args.rounds,
        "failed": failed,
        "runs": runs,
    }


def main(
    contest: type[Contest],
    programs: Mapping[str, Callable[..., Any]],
    argv: Sequence[str] | None = None,
) -> int:
    """Holds a contest, or runs one of its programs; 1 where gristmill itself failed."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--program"]:
        measured = programs[argv[1]](*argv[2:])
        print(json.dumps(measured), flush=True)
        # What libraries still read ahead, in threads and processes, is not awaited.
        for child in [*_below(os.getpid())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os._exit(0)
    args = _parse(contest, argv)
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="bench-") as work:
        results = hold(contest(args, pathlib.Path(work)))
    print(report.page(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(key.startswith("gristmill") for key in results["failed"]))


size = c4_like.parse_size
