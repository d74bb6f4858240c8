"""Tries the real MaxText on gristmill's datasets.

    python -m tests.with_maxtext [--venv DIR] [--only WORD]

makes the environment (some GB; uv has to be there), the toy data, and then does the
runs of `table.py` one after another in namespaces of their own (Linux). It ends with 1
if one fails. With `--write-interface`, it records the interface that tests without
MaxText use; otherwise it compares that.
"""

import argparse
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

from tests.with_maxtext import environment

_RECORDED = environment.ROOT / "tests" / "trainers" / "maxtext" / "interface.json"


def main():
    """Makes the environment, and runs the table in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.with_maxtext")
    parser.add_argument("--venv", type=pathlib.Path, help="its folder (a new one)")
    parser.add_argument("--python", default="3.12", help="version, or path (3.12)")
    parser.add_argument(
        "--maxtext", default=environment.VERSION, help="version (%(default)s)"
    )
    parser.add_argument("--only", default="", help="runs whose names have this")
    parser.add_argument(
        "--keep", type=pathlib.Path, help="a folder for what is written"
    )
    parser.add_argument("--write-interface", action="store_true", help="record it anew")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        environment.bring_up_loopback()
        return run_table(args.keep, args.only, write_interface=args.write_interface)
    with tempfile.TemporaryDirectory(prefix="with-maxtext-") as directory:
        venv = args.venv or pathlib.Path(directory, "venv")
        wanted = f"maxtext[tpu]=={args.maxtext}", ".[gcs,loader,tokenizers]"
        python = environment.install(venv, args.python, *wanted)
        keep = args.keep or pathlib.Path(directory, "work")
        keep.mkdir(parents=True, exist_ok=True)
        command = [str(python), "-m", "tests.with_maxtext", *sys.argv[1:]]
        command += ["--inside", "--keep", str(keep.absolute())]
        variables = {
            "JAX_PLATFORMS": "cpu",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            # A start without compiled files takes 40 seconds of CPU.
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return subprocess.run(
            environment.in_namespace(command),
            cwd=environment.ROOT,
            env={**os.environ, **variables},
            check=False,
        ).returncode


def run_table(work, only, *, write_interface):
    """Does the runs, in MaxText's environment, and prints what passed."""
    from tests.with_maxtext import interface, toy
    from tests.with_maxtext.checks import RUNS
    from tests.with_maxtext.lab import Lab

    for module in ("table", "conversations"):  # They add their runs.
        importlib.import_module(f"tests.with_maxtext.{module}")

    if write_interface:
        _RECORDED.write_text(interface.recorded())
        print(f"written: {_RECORDED}")
        return 0
    began = time.monotonic()
    toy.make(work / "toy")
    print(f"toy data: {time.monotonic() - began:.0f} s", flush=True)
    runs = {"the recorded interface": lambda _: interface.check(_RECORDED), **RUNS}
    failed = 0
    lines = []
    for title, function in runs.items():
        if only not in title:
            continue
        began = time.monotonic()
        try:
            function(Lab(work))
            verdict = "passed"
        except Exception:
            failed += 1
            verdict = "FAILED"
            traceback.print_exc()
        lines.append(f"{verdict}  {time.monotonic() - began:4.0f} s  {title}")
        print(lines[-1], flush=True)
    print("\n".join(["", interface.versions(), *lines]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
