"""Runs the examples for trainers with the real trainers, by hand.

    python -m tests.with_trainers --folder ~/trainers [gemma keras ...]

Each trainer gets a virtual environment in the folder, of some GB, that is kept. What is
compared stands in the programs beside this file.
"""

import argparse
import os
import pathlib
import subprocess
import tempfile

from tests.with_maxtext.environment import ROOT, install

# What to install for the programs whose names begin so.
TRAINERS = {
    "flax": ["flax", "optax", "orbax-checkpoint"],
    # It trains by Kauldron, which excludes the protobuf of newer versions of the last.
    "gemma": ["gemma", "kauldron", "optax", "sentencepiece<0.2.3"],
    "keras": ["keras"],
    "levanter": ["--prerelease=allow", "marin-levanter", "marin-haliax"],
    "torch": ["torch"],
    "tunix": ["google-tunix", "optax"],
}
DATA = """
gristmill demo data
gristmill pack data/demo data/rows --tokenizer data/tokenizer.json --eos '</s>' \
  --length 256 --num-shards 2
"""


def environment(trainer, folder, python):
    """Makes or renews the environment of a trainer, and returns its variables."""
    wanted = (".[loader,tokenizers]", *TRAINERS[trainer])
    inside = install(folder / trainer, python, *wanted)
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PATH": f"{inside.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def run(trainer, variables, data):
    """Runs the programs of a trainer, each in an empty folder with the data."""
    for program in sorted(pathlib.Path(__file__).parent.glob(f"run_{trainer}*.py")):
        with tempfile.TemporaryDirectory() as work:
            pathlib.Path(work, "data").symlink_to(data)
            line = ["python", program]
            subprocess.run(line, cwd=work, env=variables, check=True)
        print(f"{program.stem}: as expected", flush=True)


def main():
    """Runs the trainers that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainers", nargs="*", default=[], help="all by default")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--python", default="3.12", help="version or path")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        data = pathlib.Path(made, "data")
        for trainer in args.trainers or TRAINERS:
            variables = environment(trainer, args.folder, args.python)
            if not data.exists():  # All have the same gristmill.
                line = ["bash", "-ec", DATA]
                subprocess.run(line, cwd=made, env=variables, check=True)
            run(trainer, variables, data)


if __name__ == "__main__":
    main()
