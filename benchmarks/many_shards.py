"""Datasets of a million shards, all of them the same file.

The data of `gristmill demo` are converted into a shard of records, or packed into a
shard of rows. Its files are then linked under a million names, and the table of shards
and the list of input files become as long: an input file for four shards.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import read_inputs
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.sources.input_files import InputFiles

PER_INPUT = 4
_LINKS = 50_000  # Of one file: ext4 allows 65,000.
_NOT_ADDED = ("format", "length", "id_bytes", "vocabulary_size")


def make_dataset(folder: pathlib.Path, kind: str, shards: int) -> None:
    """Makes a dataset of so many shards, all of them the same file."""
    output = folder / kind
    first = min((folder / "demo/tfrecords").iterdir())
    made = ["convert", first, output]
    if kind == "packed":
        made = ["pack", *made[1:], "--tokenizer", folder / "demo/tokenizer.json"]
        made += ["--eos", "</s>", "--length", 2048]
    gristmill(*made, "--num-shards", 1)
    _enlarge(output, shards)


def gristmill(*arguments: object) -> None:
    """Runs a command of gristmill, without what it says."""
    command = [sys.executable, "-m", "gristmill", *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _enlarge(root: pathlib.Path, shards: int) -> None:
    """Makes the only shard of a dataset one of many of the same content."""
    manifest = open_manifest(root)
    (split,) = manifest.splits.values()
    table = ShardTable.decode((root / split.table).read_bytes(), where=split.table)
    (old,) = table.paths
    names = [
        layout.shard_name(manifest.name, "train", n, shards) for n in range(shards)
    ]
    for path in (str, layout.index_path, layout.segments_path):
        if (root / path(old)).exists():
            _link(root / path(old), [root / path(name) for name in names])
    columns = {name: np.tile(one, shards) for name, one in table.columns.items()}
    columns["span_ends"] = np.arange(1, shards + 1)
    columns["span_file"] = (np.arange(shards) // PER_INPUT).astype("<i4")
    table = ShardTable(paths=names, columns=columns)
    encoded = table.encode()
    (root / split.table).write_bytes(encoded)
    (source,) = read_inputs(str(root), split) or ()
    count = -(-shards // PER_INPUT)
    files = InputFiles(
        paths=[f"{source.path}.{number:07d}" for number in range(count)],
        sizes=np.full(count, source.size_bytes),
        versions=[source.version or ""] * count,
        compressions=np.zeros(count, np.uint8),
        noted_ns=np.zeros(count, np.int64),
    )
    with open(root / str(split.source["file_list"]), "wb") as file:
        np.savez_compressed(file, version=np.array(1), **files.arrays())
    made = Split.of_table(
        table,
        encoded,
        path=split.table,
        writer_options=split.writer_options,
        source={**split.source, "file_list_digest": files.digest},
    )
    packed = None
    if split.packed is not None:
        packed = {
            name: value * shards
            if isinstance(value, int) and name not in _NOT_ADDED
            else value
            for name, value in split.packed.items()
        }
    splits = {"train": dataclasses.replace(made, packed=packed)}
    data = dataclasses.replace(manifest, splits=splits).encode()
    (root / layout.DATASET_JSON).write_bytes(data)


def _link(old: pathlib.Path, names: Sequence[pathlib.Path]) -> None:
    data = old.read_bytes()
    for number, name in enumerate(names):
        if number % _LINKS == 0:
            name.write_bytes(data)
            first = name
        else:
            os.link(first, name)
    old.unlink()
