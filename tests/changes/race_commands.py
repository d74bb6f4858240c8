"""One command of a race, in a process of its own: `KIND OUTPUT LOG TAG [OPTION...]`.

What the command line does is called there. These are the others, and those that need to
look at the dataset first. Records say where they come from: `TAG NUMBER ...`.
"""

import json
import pathlib
import random
import sys

from gristmill import loader
from gristmill.dataset import GristmillError
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


def text_of(record):
    """Returns the column that is attached."""
    return {"text": record.decode()}


def main(kind, output, log, tag, *options):
    """Runs the command, and ends as the command line does."""
    overwrite, kept = "overwrite" in options, "keep_replaced" in options
    records = records_of(tag)
    try:
        if kind == "writer":
            changes.write(output, records, overwrite=overwrite, keep_replaced=kept)
        elif kind == "write":
            changes.begun_group(output, records, overwrite=overwrite, keep=kept)()
        else:
            remove(output, log, tag, options)
    except GristmillError as error:
        print(f"Error: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
