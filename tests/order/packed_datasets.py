"""Packed datasets in which every token says of which document it is, and which token.

So all that packing keeps of sources can be compared with the tokens themselves.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gristmill.dataset.formats.tfrecord_frames import encode_frame
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import read_inputs
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.jobs.pack_options import Method, PackOptions
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.records import frames_of

STRIDE = 1 << 10
"""Token t of document d is d * STRIDE + t."""


def record(document: int, tokens: int) -> bytes:
    """Returns a record that becomes a document of so many tokens."""
    return b"%d %d" % (document, tokens) + b"." * (document % 7)


def documents(count: int, *, seed: int, first: int = 0) -> list[bytes]:
    """Returns records of documents, some of them empty and some longer than rows."""
    chance = random.Random(seed)
    lengths = [
        chance.choice((0, 1, chance.randrange(30), chance.randrange(30), 90))
        for _ in range(count)
    ]
    return [record(first + number, length) for number, length in enumerate(lengths)]


def tokens_of(data: bytes) -> npt.NDArray[np.uint32]:
    """Returns the tokens of a record."""
    document, count = map(int, data.rstrip(b".").split())
    return document * STRIDE + np.arange(count, dtype=np.uint32)


def number_of(data: bytes) -> int:
    """Returns the number of the document that a record becomes."""
    return int(data.split()[0])


def drop_and_multiply(data: bytes) -> list[bytes]:
    """A function for `--map`: drops every third record, makes three of every fifth."""
    number = number_of(data)
    if number % 3 == 0:
        return []
    if number % 5 == 0:
        return [record(100_000 + 10 * number + i, 5 + i) for i in range(3)]
    return [data]


MAPPED = f"{__name__}:drop_and_multiply"


def mapped_places(places: dict[int, tuple[str, int]]) -> dict[int, tuple[str, int]]:
    """Returns places of documents behind `drop_and_multiply`."""
    found = {}
    for number, place in places.items():
        for data in drop_and_multiply(record(number, 1)):
            found[number_of(data)] = place
    return found


def write_frames(
    path: pathlib.Path, records: Sequence[bytes]
) -> dict[int, tuple[str, int]]:
    """Writes a TFRecord file; returns the file and the place of each document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frames_of(records))
    sizes = np.cumsum([0, *(len(encode_frame(data)) for data in records)])
    return {
        number_of(data): (str(path), int(at))
        for data, at in zip(records, sizes, strict=False)
    }


def tokens(texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
    """A tokenizer of such records."""
    return [tokens_of(text.encode()) for text in texts]


tokens.vocabulary_size = 1 << 32  # type: ignore[attr-defined]
tokens.special_ids = {}  # type: ignore[attr-defined]


def packing(length: int = 32, method: Method = "best-fit") -> PackOptions:
    """Returns how a job packs such records."""
    tokenizer = f"{__name__}:tokens"
    return PackOptions(length=length, method=method, column="", tokenizer=tokenizer)


def enlarge(dataset: pathlib.Path | str, *, shards: int, at: int, rows: int) -> None:
    """Makes the only shard of a packed dataset one of many: the others are not there.

    Args:
        dataset: One that was made of one file, in one shard.
        shards: How many shards it is to have, each of a file of its own.
        at: Which of them is the one that there is.
        rows: Rows of each of the others.
    """
    root = pathlib.Path(dataset)
    manifest = open_manifest(str(dataset))
    (split,) = manifest.splits.values()
    table = ShardTable.decode((root / split.table).read_bytes(), where=split.table)
    (old,) = table.paths
    names = [
        layout.shard_name(manifest.name, "train", i, shards) for i in range(shards)
    ]
    for path in (lambda name: name, layout.index_path, layout.segments_path):
        (root / path(old)).rename(root / path(names[at]))
    columns = {
        name: np.repeat(column, shards) for name, column in table.columns.items()
    }
    columns["records"][np.arange(shards) != at] = rows
    columns["span_ends"] = np.arange(1, shards + 1)
    # The file of the only index stays the first.
    columns["span_file"] = np.arange(shards, dtype="<i4")
    columns["span_file"][[0, at]] = at, 0
    table = ShardTable(paths=names, columns=columns)
    encoded = table.encode()
    (root / split.table).write_bytes(encoded)
    (source,) = read_inputs(str(dataset), split) or ()
    files = InputFiles(
        paths=[source.path if i == 0 else f"/gone/{i:05d}" for i in range(shards)],
        sizes=np.full(shards, source.size_bytes),
        versions=[source.version or ""] * shards,
        compressions=np.zeros(shards, np.uint8),
        noted_ns=np.zeros(shards, np.int64),
    )
    with open(root / str(split.source["file_list"]), "wb") as file:
        np.savez_compressed(file, version=np.array(1), **files.arrays())
    about = {**split.source, "file_list_digest": files.digest}
    made = Split.of_table(
        table,
        encoded,
        path=split.table,
        writer_options=split.writer_options,
        source=about,
    )
    splits = {"train": dataclasses.replace(made, packed=split.packed)}
    data = dataclasses.replace(manifest, splits=splits).encode()
    (root / layout.DATASET_JSON).write_bytes(data)
