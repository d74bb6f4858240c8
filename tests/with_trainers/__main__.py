"""Runs the examples for trainers with the real trainers, by hand.

    python -m tests.with_trainers --folder ~/trainers [kauldron keras ...]

Each trainer gets a virtual environment in the folder, of some GB, that is kept. What is
compared stands in the programs beside this file.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
# What to install, by program.
TRAINERS = {
    "flax": ["flax", "optax", "orbax-checkpoint"],
    "kauldron": ["kauldron", "optax"],
    "keras": ["keras"],
    "levanter": ["--prerelease=allow", "marin-levanter", "marin-haliax"],
}
DATA = """
gristmill demo data
gristmill pack data/demo data/rows --tokenizer data/tokenizer.json --eos '</s>' \
  --length 256 --num-shards 2
"""


def run(trainer: str, folder: pathlib.Path, python: str) -> None:
    """Makes or renews the environment of a trainer, and runs its program."""
    venv = folder.absolute() / trainer
    uv = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
    if not venv.exists():
        subprocess.run([*uv, "venv", "-q", "--python", python, venv], check=True)
    command = [*uv, "pip", "install", "-q", "--python", venv / "bin" / "python"]
    command += ["--reinstall-package", "gristmill", ".[loader,tokenizers]"]
    subprocess.run([*command, *TRAINERS[trainer]], cwd=ROOT, check=True)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    program = pathlib.Path(__file__).with_name(f"run_{trainer}.py")
    with tempfile.TemporaryDirectory() as work:
        for line in (["bash", "-ec", DATA], [str(venv / "bin" / "python"), program]):
            subprocess.run(line, cwd=work, env=environment, check=True)
    print(f"{trainer}: as expected")


def main() -> None:
    """Runs the trainers that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainers", nargs="*", default=[], help="all by default")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--python", default="3.12", help="version or path")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for trainer in args.trainers or TRAINERS:
        run(trainer, args.folder, args.python)


if __name__ == "__main__":
    main()
