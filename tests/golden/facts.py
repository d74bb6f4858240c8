"""Facts of datasets that stay true for a user, and the commands that make them."""

import collections
import contextlib
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import shlex
import struct
import tempfile
from typing import NamedTuple

import numpy as np
import pytest

from gristmill import loader
from tests.servers.gcs_server import GcsServer


class Done(NamedTuple):
    """A command that has ended: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


# Commands that make their work in this process, unless something else is said.
WORKING = ("convert", "append", "index", "pack", "remove", "unique", "verify")


def tried(*argv):
    """Runs `gristmill` in this process, and returns how it ended."""
    scripts = importlib.metadata.entry_points(group="console_scripts")
    out, err, code, words = io.StringIO(), io.StringIO(), 0, [*map(str, argv)]
    if words[0] in WORKING and not {"--runner", "--workers"} & {*words}:
        words += ["--workers", "1"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            scripts["gristmill"].load()(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def command(*argv):
    """Runs `gristmill` in this process, and returns its standard output."""
    done = tried(*argv)
    assert done.code == 0, (argv, done)
    return done.out


def play(script, **whats):
    """Runs the commands of a script, and returns the facts that its other lines name.

    A line `-> WHAT DATASET ...` adds facts, `-> KEY: WHAT DATASET ...` facts of a name.
    Facts that are named twice have to be the same. `whats` are functions for more of
    these than `WHATS` has.
    """
    kept = {}
    for line in filter(None, map(str.strip, script.splitlines())):
        if not line.startswith("->"):
            command(*shlex.split(line))
            continue
        key, _, told = line.removeprefix("-> ").rpartition(": ")
        what, *given = told.split()
        found = (WHATS | whats)[what](*given)
        found = {key: found} if key else found
        assert all(kept.get(name, each) == each for name, each in found.items()), line
        kept |= found
    return kept


@contextlib.contextmanager
def bucket():
    """Serves the bucket `gs://bucket`, with a cache of its own in this directory."""
    with GcsServer("bucket") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        patch.setenv("GRISTMILL_CACHE_DIR", os.path.abspath("cache"))
        yield server


def alike(found):
    """Returns facts that are the same of all."""
    first, *others = found.values()
    assert all(other == first for other in others), found
    return first


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


def read_shard(path):
    """Reads a local shard with the official reader."""
    from array_record.python.array_record_module import ArrayRecordReader

    with contextlib.closing(ArrayRecordReader(str(path))) as reader:
        return [bytes(item) for item in reader.read_all()]


def shards_of(dataset):
    """Yields the records of each shard, in order: by the official reader, if local."""
    for number in range(dataset.facts.shards):
        shard = dataset.shard(number)
        if "://" in shard.path:
            end = shard.first_record + shard.records
            yield dataset[shard.first_record : end]
        else:
            yield read_shard(shard.path)


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
    shards, held = [*shards_of(dataset)], list(dataset)
    assert held == [item for shard in shards for item in shard]
    found = {"all": of_records(held), "shards": [*map(of_records, shards)]}
    return found | ({"places": places(path, *at)} if at else {})


def verified(path, *at):
    """Returns the facts of a dataset that `verify` finds whole, and its columns."""
    command("verify", path)
    columns = of_columns(path)
    return of_dataset(path, *at) | ({"columns": columns} if columns else {})


def of_columns(path):
    """Returns the values of the columns of a split, by name."""
    dataset = loader.open(path)
    columns = {name: np.asarray(dataset.column(name)) for name in dataset.columns}
    return {
        name: values.tolist() if values.size <= 8 else digest_of_array(values)
        for name, values in sorted(columns.items())
    }


def places(path, *numbers, split="train"):
    """Returns, by number, the source file and the place there that `trace` tells."""
    return {
        str(number): _place(
            json.loads(
                command("trace", path, "--split", split, "--records", number, "--json")
            )
        )
        for number in numbers
    }


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
    "columns": of_columns,
    "chunks": chunks_of,
    "places": places,
    "refused": lambda *argv: tried(*argv).code,
}
