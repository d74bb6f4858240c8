"""A test of resuming, with gristmill and with other loaders.

    python -m benchmarks.resume --json benchmarks/results/resume.json
    python -m benchmarks.resume --quick
    python -m benchmarks.resume --loaders litdata --json FILE

All loaders read the same 200,000 records in 16 shards, each in its own format.
`docs/performance/resume.md` has the cases and what is measured. Loaders that
gristmill's extra `dev` does not install run in environments of their own in
`build/resume`, which are made where they are not there. With --loaders, the others stay
in the JSON as they are.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks.contest import VARIABLES, describe_environment
from benchmarks.report import ROOT
from benchmarks.resume import report
from benchmarks.resume.environments import LOADERS, QUICK, python_of
from benchmarks.resume.records import SHARDS

# Records of a shard, worker processes before and after a stop, and the seconds after
# which a run has failed.
_FULL, _QUICK = (12_500, 2, 4, 900), (100, 1, 2, 120)
# The worker processes of other loaders take most of the time to start.
_QUICK_PEERS = (100, 0, 0, 120)
_ENVIRONMENTS = ROOT / "build" / "resume"
_OWN = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def try_loader(loader, python, work, *size):
    """Returns the results of one loader."""
    begin = time.monotonic()
    # LitData deletes the folder `data` beside temporary files.
    home = pathlib.Path(work, "home")
    home.mkdir()
    module = "benchmarks.resume.trial"
    done = subprocess.run(
        [python, "-m", module, loader, work, *map(str, size)],
        cwd=ROOT,
        env={**os.environ, **VARIABLES, **_OWN, "HOME": str(home), "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return {
        **json.loads(done.stdout.splitlines()[-1]),
        "date": describe_environment()["date"],
        "minutes": (time.monotonic() - begin) / 60,
    }


def main(argv=None):
    """Runs the test; 1 where gristmill is not exact in every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--loaders", nargs="+", choices=LOADERS)
    parser.add_argument("--json", type=pathlib.Path, help="write what came of it here")
    args = parser.parse_args(argv)
    results = {"loaders": {}}
    if args.loaders and args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    results["environment"] = describe_environment()
    results["records"] = SHARDS * (_QUICK if args.quick else _FULL)[0]
    for loader in args.loaders or (QUICK if args.quick else LOADERS):
        python = python_of(loader, _ENVIRONMENTS, quick=args.quick)
        quick = _QUICK if loader == "gristmill" else _QUICK_PEERS
        size = quick if args.quick else _FULL
        with tempfile.TemporaryDirectory(prefix="resume-") as work:
            results["loaders"][loader] = try_loader(loader, python, work, *size)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    print("\n\n".join(report.parts(results).values()))
    ours = results["loaders"].get("gristmill")
    return int(ours is not None and not report.is_exact(ours["cases"]))


if __name__ == "__main__":
    sys.exit(main())
