"""One command of a race, in a process of its own: `KIND OUTPUT LOG TAG [OPTION...]`.

What the command line does is called there. These are the others, and those that need to
look at the dataset first. Records say where they come from: `TAG NUMBER ...`.
"""

import contextlib
import json
import pathlib
import random
import sys

import numpy as np

from gristmill import loader
from gristmill.dataset import ColumnWriter, GristmillError, InputError, open_manifest
from gristmill.dataset.commit.commit import roll_back
from tests.changes import changes

RECORDS = 12


def records_of(tag):
    """Returns the records of a source."""
    return [f"{tag} {number} ".encode() * 20 for number in range(RECORDS)]


def remove(output, log, tag, options):
    """Removes two records, and notes before which."""
    dataset = loader.open(output, "train", verify="never", cache_dir="")
    numbers = sorted(random.Random(tag).sample(range(len(dataset)), 2))
    with pathlib.Path(log).open("a") as file:
        for record in dataset.read(numbers):
            source, number, *_ = record.decode().split()
            file.write(json.dumps([source, int(number)]) + "\n")
    edition, erase = dataset.facts.edition, "erase" in options
    changes.remove(output, numbers, edition, erase=erase)


def attach(output, tag):
    """Attaches the records as a column, under one of two names of what computes it."""
    dataset = loader.open(output, "train", verify="never", cache_dir="")
    texts = [record.decode() for record in dataset.read(range(len(dataset)))]
    source = random.Random(tag).choice("xy")
    writer = ColumnWriter(
        output, {"text": "text"}, source=source, resume=True, overwrite=True
    )
    now = loader.open(output, "train", verify="never", cache_dir="")
    # A rollback in between can give the split its edition again.
    if now.facts.edition != dataset.facts.edition or len(writer.records) != len(texts):
        raise InputError("another command has changed the split while this one ran")
    with writer:
        if rest := texts[writer.position_records :]:
            writer.write({"text": np.array(rest, object)})


def go_back(output, tag):
    """Goes back to any edition."""
    split = open_manifest(output).splits["train"]
    edition = random.Random(tag).choice(sorted(split.known))
    with contextlib.suppress(InputError):  # It is part of a state alone.
        roll_back(output, "train", edition)


def main(kind, output, log, tag, *options):
    """Runs the command, and ends as the command line does."""
    try:
        kept = "keep_replaced" in options
        if kind == "writer":
            given = {"overwrite": "overwrite" in options, "keep_replaced": kept}
            changes.write(output, records_of(tag), **given)
        elif kind == "write":
            overwrite = "overwrite" in options
            changes.begun_group(
                output, records_of(tag), overwrite=overwrite, keep=kept
            )()
        elif kind == "remove":
            remove(output, log, tag, [*options])
        elif kind == "attach":
            attach(output, tag)
        else:
            go_back(output, tag)
    except GristmillError as error:
        print(f"Error: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
