"""Facts of datasets that stay true for a user, and the commands that make them."""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import struct
import tempfile

import numpy as np

from gristmill import loader
from tests.servers.gcs_server import GcsServer

Path = str | pathlib.Path


@dataclasses.dataclass(frozen=True)
class Done:
    """A command that has ended.

    Attributes:
        code: Its exit code.
        out: Its standard output.
        err: Its standard error.
    """

    code: int
    out: str
    err: str


@functools.cache
def _main():
    scripts = importlib.metadata.entry_points(group="console_scripts")
    main = scripts["gristmill"].load()
    return main


def tried(*argv):
    """Runs `gristmill` in this process, and returns how it ended."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _main()([str(each) for each in argv])
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def command(*argv):
    """Runs `gristmill` in this process, and returns its standard output."""
    done = tried(*argv)
    assert done.code == 0, (argv, done)
    return done.out


def convert(*argv, workers=1):
    """Runs `gristmill convert` in this process, or with worker processes."""
    command("convert", *argv, "--workers", workers)


@contextlib.contextmanager
def environment(**variables):
    """Sets environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def bucket(folder):
    """Serves the bucket `gs://bucket`, with a cache of its own in a folder."""
    cache = str(folder / "cache")
    with (
        GcsServer("bucket") as server,
        environment(STORAGE_EMULATOR_HOST=server.url, GRISTMILL_CACHE_DIR=cache),
    ):
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

    reader = ArrayRecordReader(str(path))
    try:
        return [bytes(item) for item in reader.read_all()]
    finally:
        reader.close()


def shards_of(dataset):
    """Returns the records of each shard, in order: by the official reader, if local."""
    shards = []
    for number in range(dataset.facts.shards):
        shard = dataset.shard(number)
        if "://" in shard.path:
            end = shard.first_record + shard.records
            shards.append(dataset[shard.first_record : end])
        else:
            shards.append(read_shard(shard.path))
    return shards


def chunks_of(path, split=None):
    """Returns how many chunks hold so many records each."""
    dataset = loader.open(path, split)
    shards, _ = dataset.find(np.arange(len(dataset)))
    held = collections.Counter(
        (int(shard), dataset.stored.offset_bytes(number))
        for number, shard in enumerate(shards)
    )
    sizes = sorted(collections.Counter(held.values()).items(), reverse=True)
    return ", ".join(f"{count} of {size}" for size, count in sizes)


def of_dataset(path, split=None, *, edition=None):
    """Returns the facts of a split: of its records in order, and of its shards."""
    dataset = loader.open(path, split, edition=edition)
    shards = shards_of(dataset)
    held = list(dataset)
    assert held == [item for shard in shards for item in shard]
    return {"all": of_records(held), "shards": [of_records(shard) for shard in shards]}


def of_columns(path, split=None):
    """Returns the values of the columns of a split, by name."""
    dataset = loader.open(path, split)
    columns = {name: np.asarray(dataset.column(name)) for name in dataset.columns}
    return {
        name: values.tolist() if values.size <= 8 else digest_of_array(values)
        for name, values in sorted(columns.items())
    }


def places(path, numbers, split=None):
    """Returns, by number, the source file and the place there that `trace` tells."""
    chosen = () if split is None else ("--split", split)
    return {
        str(number): _place(
            json.loads(command("trace", path, "--records", number, "--json", *chosen))
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
