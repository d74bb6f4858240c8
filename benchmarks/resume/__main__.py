"""A test of resuming, with gristmill and with other loaders.

    python -m benchmarks.resume --json benchmarks/results/resume.json
    python -m benchmarks.resume --quick
    python -m benchmarks.resume --loaders litdata --json FILE

All loaders read the same 200,000 records in 16 shards, each in its own format.
`docs/performance/resume.md` has the cases and what is measured. Loaders that
gristmill's extra `dev` does not install run in environments of their own below
`--envs`, which are made where they are not there. With --loaders, the others stay in
the JSON as they are.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.contest import describe_environment, say
from benchmarks.resume import report
from benchmarks.resume.environments import LOADERS, QUICK, python_of, versions
from benchmarks.resume.run import Runner
from benchmarks.resume.trial import Size, Trial, has

_FULL = Size(
    shard_records=12_500,
    workers=(2, 4),
    timeout_seconds=900,
)
_QUICK = Size(
    shard_records=100,
    workers=(1, 2),
    timeout_seconds=120,
)
# Their worker processes take most of the time to start.
_QUICK_PEERS = dataclasses.replace(_QUICK, workers=(0, 0))
_LOADERS = pathlib.Path(__file__).with_name("loaders")


def facts_of(loader: str) -> dict[str, Any]:
    """Returns the title and the packages of an adapter, without importing it."""
    tree = ast.parse((_LOADERS / f"{loader}.py").read_text(encoding="utf-8"))
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in ("TITLE", "PACKAGES", "READERS_STAY")
    }


def try_loader(
    loader: str, size: Size, python: pathlib.Path, work: pathlib.Path
) -> dict[str, Any]:
    """Returns the results of one loader."""
    facts = facts_of(loader)
    begin = time.monotonic()
    with contextlib.closing(Runner(loader, python, work, size.timeout_seconds)) as run:
        trial = Trial(
            run,
            size,
            readers_stay=facts.get("READERS_STAY", False),
            packs_other_data=has(loader, "write_packed"),
            folder=str(work / "data"),
        )
        found = trial.run(lambda text: say(f"{loader} {text}"))
    return {
        "title": facts["TITLE"],
        "packages": versions(python, facts["PACKAGES"]),
        "date": describe_environment(())["date"],
        "minutes": (time.monotonic() - begin) / 60,
        **found,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the test; 1 where gristmill is not exact in every case."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resume", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--loaders", nargs="+", choices=LOADERS, metavar="NAME")
    parser.add_argument(
        "--envs", type=pathlib.Path, default=pathlib.Path("build", "resume")
    )
    parser.add_argument("--work-dir", type=pathlib.Path, help="for temporary data")
    parser.add_argument("--json", type=pathlib.Path, help="write what came of it here")
    args = parser.parse_args(argv)
    results: dict[str, Any] = {"loaders": {}}
    if args.loaders and args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    results["environment"] = describe_environment(("numpy",))
    results["records"] = (_QUICK if args.quick else _FULL).records
    for loader in args.loaders or (QUICK if args.quick else LOADERS):
        work = pathlib.Path(tempfile.mkdtemp(dir=args.work_dir, prefix="resume-"))
        try:
            python = python_of(loader, args.envs, quick=args.quick)
            size = _FULL
            if args.quick:
                size = _QUICK if loader == "gristmill" else _QUICK_PEERS
            found = try_loader(loader, size, python, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        results["loaders"][loader] = found
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    print("\n\n".join(report.parts(results).values()))
    ours = results["loaders"].get("gristmill")
    return int(ours is not None and not report.is_exact(ours["cases"]))


if __name__ == "__main__":
    sys.exit(main())
