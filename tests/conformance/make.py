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

from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.metadata.manifest import open_manifest, states_of
from gristmill.pipelines.commands.main import cli

DATASETS = pathlib.Path(__file__).parent / "datasets"


def read_all(dataset, split="train", edition=None):
    """Returns the records that the loader reads."""
    opened = loader.open(dataset, split, edition=edition, cache_dir="")
    return [bytes(record) for record in opened[range(len(opened))]]


def records_of(dataset):
    """Returns, for each split, its records now and as of each known edition."""
    manifest, splits = open_manifest(dataset), {}
    for split, described in manifest.splits.items():
        states = {}
        for edition, state in states_of(described).items():
            records = map(base64.b64encode, read_all(dataset, split, edition))
            states[f"{edition}"] = {
                "records_digest": state.records_digest,
                "records": [record.decode() for record in records],
            }
        splits[split] = {"edition": described.edition, "states": states}
    written = json.loads(pathlib.Path(dataset, "dataset.json").read_bytes())
    digest = {"content_digest": manifest.content_digest, "splits": splits}
    return {"format_version": written["format_version"], **digest}


def refusal_of(dataset, blamed):
    """Returns the file to blame, and the error of the loader."""
    try:
        read_all(dataset)
    except loader.GristmillError as error:
        return {"blamed": blamed, "loader": type(error).__name__}
    return {"blamed": None, "loader": None}


def facts_of(dataset, blamed=None):
    """Returns what the loader reads of a dataset, and what `gristmill verify` says."""
    damaged = pathlib.Path(dataset).name.startswith("damaged_")
    read = refusal_of(dataset, blamed) if damaged else records_of(dataset)
    done = CliRunner().invoke(cli, ["verify", dataset, "--json", "--workers", "1"])
    result = json.loads(done.stdout)
    said = {
        "exit_code": done.exit_code,
        "findings": sorted({each["path"] for each in result.get("findings", [])}),
        "error": result.get("error", {}).get("type"),
    }
    return {**read, "verify": said}


def main():
    """Makes a dataset, what is expected of it, and its archive."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.make")
    for name in ("name", "about", "script"):
        parser.add_argument(name)
    parser.add_argument("--blamed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        subprocess.run(args.script, shell=True, check=True)
        expected = {"about": args.about, **facts_of(args.name, args.blamed)}
        shutil.make_archive(str(DATASETS / args.name), "zip", ".", args.name)
    text = json.dumps(expected, indent=1) + "\n"
    (DATASETS / f"{args.name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
