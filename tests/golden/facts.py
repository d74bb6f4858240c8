"""Facts of datasets that stay true for a user, and the commands that make them."""

import collections
import functools
import hashlib
import json
import os
import shlex
import struct
import tempfile

import numpy as np
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from tests.support.records import read_array_records


def command(*argv):
    """Runs `gristmill` in this process, and returns its standard output."""
    words = [*map(str, argv)]
    if words[0] not in ("clean", "rollback", "trace") and "--runner" not in words:
        words += ["--workers", "1"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, (argv, done.output)
    return done.stdout


def play(script, **whats):
    """Runs the commands of a script, and returns the facts that its other lines name.

    A line `-> WHAT DATASET ...` adds facts, `-> KEY: WHAT DATASET ...` facts of a name.
    `whats` are functions for more of these than `WHATS` has.
    """
    kept = {}
    for line in filter(None, map(str.strip, script.splitlines())):
        if not line.startswith("->"):
            command(*shlex.split(line))
            continue
        key, _, told = line.removeprefix("-> ").rpartition(": ")
        what, *given = told.split()
        found = (WHATS | whats)[what](*given)
        kept |= {key: found} if key else found
    return kept


@functools.cache
def folder():
    """Returns a directory for datasets that several cases of this process use."""
    return tempfile.TemporaryDirectory(prefix="golden-")


def digest(items):
    """Returns a digest of records in their order."""
    found = hashlib.sha256()
    for item in items:
        found.update(struct.pack("<q", len(item)) + item)
    return found.hexdigest()[:16]


def digest_of_array(values):
    """Returns a digest of an array: type, shape and values, or texts, in order."""
    array = np.asarray(values)
    if array.dtype.kind in "OU":
        return f"text{array.shape} {digest(str(v).encode() for v in array.ravel())}"
    kind = array.dtype.newbyteorder("<")
    data = np.ascontiguousarray(array, kind).tobytes()
    return f"{array.dtype.name}{array.shape} {digest([data])}"


def of_records(items):
    """Returns number, bytes and digest of records."""
    held = list(items)
    return f"{len(held)} records, {sum(map(len, held))} bytes, {digest(held)}"


def shards_of(dataset):
    """Returns the records of each shard, in order, by the official reader."""
    paths = (dataset.shard(number).path for number in range(dataset.facts.shards))
    return [*map(read_array_records, paths)]


def chunks_of(path):
    """Returns how many chunks hold so many records each."""
    dataset = loader.open(path)
    shards, _ = dataset.find(np.arange(len(dataset)))
    held = collections.Counter(
        (int(shard), dataset.stored.offset_bytes(number))
        for number, shard in enumerate(shards)
    )
    sizes = sorted(collections.Counter(held.values()).items(), reverse=True)
    return ", ".join(f"{count} of {size}" for size, count in sizes)


def of_dataset(path, *at, split=None, edition=None):
    """Returns the facts of a split: of its records, of its shards, of some places."""
    dataset = loader.open(path, split, edition=edition)
    shards, held = shards_of(dataset), list(dataset)
    assert held == [item for shard in shards for item in shard]
    found = {"all": of_records(held), "shards": [*map(of_records, shards)]}
    return found | ({"places": places(path, *at)} if at else {})


def verified(path, *at):
    """Returns the facts of a dataset that `verify` finds whole."""
    command("verify", path)
    return of_dataset(path, *at)


def places(path, *numbers):
    """Returns, by number, the source file and the place there that `trace` tells."""
    found = {}
    for number in numbers:
        told = command("trace", path, "--records", number, "--json")
        found[number] = _place(json.loads(told))
    return found


def columns(path):
    """Returns digests of the values of all columns, by name."""
    dataset = loader.open(path)
    return {name: digest_of_array(dataset.column(name)) for name in dataset.columns}


def _place(told):
    """Returns a place as text, such as `a.tfrecord byte 120`."""
    file = os.path.basename(told["source_path"] or "")
    for name, field in {
        "line": "source_line",
        "record": "source_record",
        "byte": "source_offset_bytes",
    }.items():
        if told.get(field) is not None:
            return f"{file} {name} {told[field]}"
    return f"{file} unknown"


WHATS = {
    "dataset": of_dataset,
    "verified": verified,
    "splits": lambda path: {s: of_dataset(path, split=s) for s in ("train", "test")},
    "records": lambda path: verified(path)["all"],
    "first": lambda path: of_dataset(path, edition=1)["all"],
    "columns": columns,
    "chunks": chunks_of,
    "places": places,
}
