"""Adds a dataset to this folder, and the records expected of it.

    python -m tests.conformance.make NAME ABOUT SCRIPT [--blamed FILE]

A shell runs SCRIPT in an empty directory, where it has to make the directory NAME.
ABOUT is a sentence on it, FILE the damaged file that a reader must refuse. What is
committed stays as it is, for it stands for what users have on their disks.
"""

import argparse
import base64
import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile

from gristmill import loader
from gristmill.dataset.metadata.manifest import open_manifest, states_of

DATASETS = pathlib.Path(__file__).parent / "datasets"


def read_all(dataset, split, edition=None):
    """Returns the records that the loader reads."""
    opened = loader.open(dataset, split, edition=edition, cache_dir="")
    return [bytes(record) for record in opened[range(len(opened))]]


def records_expected(name):
    """Returns, for each split, its records now and as of each known edition."""
    manifest = open_manifest(name)
    splits = {}
    for split, described in manifest.splits.items():
        states = {
            edition: {
                "records_digest": state.records_digest,
                "records": [
                    base64.b64encode(record).decode()
                    for record in read_all(name, split, edition)
                ],
            }
            for edition, state in states_of(described).items()
        }
        splits[split] = {"edition": described.edition, "states": states}
    written = json.loads(pathlib.Path(name, "dataset.json").read_bytes())
    digest = {"content_digest": manifest.content_digest, "splits": splits}
    return {"format_version": written["format_version"], **digest}


def refusal_expected(name, blamed):
    """Returns the file to blame, and the error of the loader."""
    try:
        read_all(name, "train")
    except loader.GristmillError as error:
        return {"blamed": blamed, "loader": type(error).__name__}
    return {"blamed": None, "loader": None}


def verified(name):
    """Returns what `gristmill verify` says: its exit code, and the files it blames."""
    command = ["gristmill", "verify", name, "--json", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result = json.loads(done.stdout)
    paths = sorted({finding["path"] for finding in result.get("findings", [])})
    error = result.get("error", {}).get("type")
    return {"exit_code": done.returncode, "findings": paths, "error": error}


def main():
    """Makes a dataset, what is expected of it, and its archive."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.make")
    for name in ("name", "about", "script"):
        parser.add_argument(name)
    parser.add_argument("--blamed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        subprocess.run(args.script, shell=True, check=True)
        if args.name.startswith("damaged_"):
            found = refusal_expected(args.name, args.blamed)
        else:
            found = records_expected(args.name)
        expected = {"about": args.about, **found, "verify": verified(args.name)}
        shutil.make_archive(str(DATASETS / args.name), "zip", ".", args.name)
    text = json.dumps(expected, indent=1) + "\n"
    (DATASETS / f"{args.name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
