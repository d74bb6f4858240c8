"""One command of a race, in a process of its own: `KIND OUTPUT LOG TAG [OPTION...]`.

What the command line does is called there. These are the others, and those that need to
look at the dataset first. Records say where they come from: `TAG NUMBER ...`.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import sys

import google_crc32c
import numpy as np

from gristmill import loader
from gristmill.dataset import ColumnWriter, Writer
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import GristmillError, InputError
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import (
    begin_removal,
    commit_removal,
)
from gristmill.transforms.writing.write_group import (
    assign_record,
    encode_task,
    write_group,
)
from gristmill.transforms.writing.write_split import (
    WriteJob,
    begin_write,
    commit_write,
    pack_count,
)

NAME = "d"
RECORDS = 12


def records_of(tag: str) -> list[bytes]:
    """Returns the records of a source."""
    return [f"{tag} {number} ".encode() * 20 for number in range(RECORDS)]


def write_by_loop(output: str, tag: str, options: list[str]) -> None:
    """Writes a split with a `Writer`."""
    settings = {name: name in options for name in ("overwrite", "keep_replaced")}
    with Writer(output, name=NAME, records_per_shard=5, **settings) as writer:
        for record in records_of(tag):
            writer.write(record)


def write_by_pipeline(output: str, tag: str, options: list[str]) -> None:
    """Does what `WriteArrayRecords` does."""
    job = WriteJob(
        output=output,
        name=NAME,
        split="train",
        num_shards=2,
        shard_bytes=None,
        keyed=False,
        writer=WriterOptions(),
    )
    groups: list[list[bytes]] = [[], []]
    counts = b""
    for record in records_of(tag):
        group, element = assign_record(record, 2)
        groups[group].append(element)
        word = google_crc32c.value(record) | len(record) << 32
        digest = RecordsDigest.of_words(np.array([word], np.uint64))
        counts += pack_count(group, digest.pack())
    plan = begin_write(job, counts, groups=2, overwrite="overwrite" in options)
    made = Gathered.of(
        write_group(job, group, [*groups[group], encode_task(task)])
        for group, task in plan.tasks()
    )
    keep = "keep_replaced" in options
    commit_write(made, keep_replaced=keep)


def remove(output: str, log: str, tag: str, options: list[str]) -> None:
    """Removes two records, and notes before which."""
    dataset = loader.open(output, "train", verify="never", cache_dir="")
    numbers = sorted(random.Random(tag).sample(range(len(dataset)), 2))
    with pathlib.Path(log).open("a") as file:
        for record in dataset.read(numbers):
            source, number, *_ = record.decode().split()
            file.write(json.dumps([source, int(number)]) + "\n")
    erase = "erase" in options
    begun = begin_removal(output, numbers, edition=dataset.facts.edition, erase=erase)
    cuts = Gathered.of([begun])
    for task in begun.tasks():
        cut_shard(task).gather(cuts)
    commit_removal(cuts)


def attach(output: str, tag: str) -> None:
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


def go_back(output: str, tag: str) -> None:
    """Goes back to any edition."""
    split = open_manifest(output).splits["train"]
    edition = random.Random(tag).choice(sorted(split.known))
    with contextlib.suppress(InputError):  # It is part of a state alone.
        roll_back(output, "train", edition)


def main(kind: str, output: str, log: str, tag: str, *options: str) -> None:
    """Runs the command, and ends as the command line does."""
    try:
        if kind == "writer":
            write_by_loop(output, tag, [*options])
        elif kind == "write":
            write_by_pipeline(output, tag, [*options])
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
