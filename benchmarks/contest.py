"""Contests: programs do the same work in turns, and what each took is compared.

A contest is a module with a `Contest` and the programs that it measures. Each run is a
process of its own; every round begins with another contestant, so that a slow minute of
the machine does not hit the same one each time.
"""

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import inspect
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

from benchmarks import c4_like, report
from benchmarks.cost import kill_below, run_measured

# No contestant uses a GPU or threads of its own in a library.
VARIABLES = {
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
        option: The option of the contest without which it takes no part.
        bound: Whether it does less work than the others.
    """

    label: str
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


class Contest:
    """Programs that do the same work, and how the work is counted.

    The docstring of a contest is the title of its page, and a paragraph of what is
    done.

    Attributes:
        name: Name of the module, the runs and the page.
        unit: Of the work of a run.
        reference: Contestants that others are compared with: the first that ran.
        contestants: Who takes part, by key.
        columns: More of a run that the page shows: its key, with a label.
        options: Options of its own: their values, those of `--quick`, and their help.
        packages: Whose versions are kept.
        elsewhere: Packages of other environments: the option that names the Python.
        peers: What the page of peers says of this contest.
        args: The command line.
        work: A folder for the time being.
    """

    unit = "MB"
    columns = {}
    options = {}
    packages = ()
    elsewhere = {}
    peers = ()

    def __init__(self, args, work):
        self.args, self.work = args, work

    def cases(self):
        """Makes the input of each case, and yields its name and who takes part."""
        raise NotImplementedError

    def measure(self, case, key):
        """Runs a contestant once; returns its cost, and its `work`.

        Raises:
            RuntimeError: The contestant failed, or did not do the work.
        """
        raise NotImplementedError

    def environment(self):
        """Returns the conditions of the numbers, and versions in other environments."""
        found = describe_environment(self.packages)
        for option, package in self.elsewhere.items():
            if python := getattr(self.args, option):
                found["packages"][package] = version_in(python, package)
        return found

    def program(self, name, *arguments):
        """Returns the command of a program: a function of the contest's module."""
        module = f"benchmarks.{self.name}"
        return [sys.executable, "-m", module, "--program", name, *arguments]

    def run(self, command, variables=None, **options):
        """Runs a command, with nothing left to be written; see `run_measured`."""
        os.sync()
        cache = {"GRISTMILL_CACHE_DIR": str(self.work / "cache")}
        variables = {**VARIABLES, **cache, **(variables or {})}
        return run_measured(command, variables=variables, **options)

    def fresh(self, name="out"):
        """Returns a path below the work folder, where nothing is left."""
        shutil.rmtree(self.work / name, ignore_errors=True)
        return self.work / name


def gristmill(*arguments):
    """Returns a command of gristmill, by this very interpreter."""
    return [sys.executable, "-m", "gristmill", *arguments]


def make(*arguments):
    """Runs a command of gristmill that is not measured."""
    subprocess.run(gristmill(*arguments), check=True, stdout=subprocess.DEVNULL)


def make_shards(work, kind, group, size_bytes):
    """Makes shards of generated records, with so many a chunk, beside TFRecords."""
    inputs, output = work / kind, work / "bucket" / f"{kind}-{group}"
    if not inputs.exists():
        c4_like.write_tfrecords(inputs, size_bytes=size_bytes, files=4, records=kind)
    how = ("--match-shards", "--compression=zstd:3", f"--group-size={group}")
    make("convert", f"{inputs}/*.tfrecord-*", output, *how)
    return output


def open_feed(dataset, batch, *, shuffle="global", **how):
    """Returns a feed of all rows of a dataset, without end."""
    from gristmill import loader

    batch = min(batch, len(dataset))
    batches = loader.global_batches(dataset, batch_size=batch, seed=1, shuffle=shuffle)
    return batches.feed(host=(0, 1), **how)


def expect(found, expected, what):
    """Raises RuntimeError unless a contestant has done its work."""
    if found != expected:
        raise RuntimeError(f"{what}: got {found}, expected {expected}")


def split_in(output):
    """Returns the fields of the only split of a dataset."""
    fields = json.loads((output / "dataset.json").read_text())
    (split,) = fields["splits"].values()
    return split


def bytes_below(folder):
    """Returns the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def take_turns(contestants, rounds):
    """Yields the number of each round, from 0 on, with each contestant."""
    for number in range(rounds):
        turn = number % max(1, len(contestants))
        for contestant in [*contestants[turn:], *contestants[:turn]]:
            yield number, contestant


def describe_environment(packages=()):
    """Returns the conditions of the numbers: the day, processors, Python, versions."""
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    info = pathlib.Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*: (.*)$", info, re.MULTILINE)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "cpu": found[1] if found else platform.machine(),
        "python": platform.python_version(),
        "packages": versions,
    }


def said_by(*command):
    """Returns the output of a command, stripped."""
    return subprocess.check_output(command, text=True).strip()


def version_in(python, package):
    """Returns the version of a package in the environment of another Python."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return said_by(python, "-c", code)


def say(text):
    """Prints how far the contest is."""
    print(text, file=sys.stderr, flush=True)


def _described(contest):
    title, about = inspect.getdoc(contest).split(".\n\n")
    return {"title": title, "about": " ".join(about.split())}


def _parse(contest, argv):
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{contest.name}",
        description=_described(contest)["about"],
    )
    options = {"rounds": (5, 1, "how often each runs"), **contest.options}
    for name, (full, quick, about) in options.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(full or ""),
            default=quick if "--quick" in argv else full,
            help=f"{about} ({full})" if full else about,
        )
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument(
        "--contestants", "-c", nargs="+", choices=sorted(contest.contestants)
    )
    parser.add_argument("--cases", nargs="+", help="only these")
    parser.add_argument("--json", type=pathlib.Path, help="where the runs are kept")
    return parser.parse_args(argv)


def _takes_part(args, key, contestant):
    if args.contestants and key not in args.contestants:
        return False
    there = not contestant.option or getattr(args, contestant.option) is not None
    if not there:
        say(f"{key} takes no part without --{contestant.option}")
    return there


def hold(contest):
    """Runs all rounds of all cases; a contestant that fails is not asked again."""
    args, runs, failed = contest.args, [], {}
    known = {k for k, c in contest.contestants.items() if _takes_part(args, k, c)}
    for case, keys in contest.cases():
        if args.cases and case not in args.cases:
            continue
        present = [key for key in keys if key in known]
        for number, key in take_turns(present, args.rounds):
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
            say(f"{case} {key}: {speed:,.2f} {contest.unit} per CPU second")
    return {
        "name": contest.name,
        **_described(type(contest)),
        "unit": contest.unit,
        "reference": contest.reference,
        "columns": contest.columns,
        "contestants": {
            key: dataclasses.asdict(each) for key, each in contest.contestants.items()
        },
        "peers": [dataclasses.asdict(peer) for peer in contest.peers],
        "environment": contest.environment(),
        "rounds": args.rounds,
        "failed": failed,
        "runs": runs,
    }


def main(contest, argv=None):
    """Holds a contest, or runs one of its programs; 1 where gristmill itself failed."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--program"]:
        program = getattr(sys.modules[contest.__module__], argv[1])
        measured = program(*argv[2:])
        print(json.dumps(measured), flush=True)
        # What libraries still read ahead, in threads and processes, is not awaited.
        kill_below()
        os._exit(0)
    args = _parse(contest, argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as work:
        results = hold(contest(args, pathlib.Path(work)))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    print(report.page(results))
    return int(any(key.startswith("gristmill") for key in results["failed"]))
