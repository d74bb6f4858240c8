"""Small datasets to look at, and what a page holds."""

from __future__ import annotations

import json
import pathlib
import re
import struct
import zlib
from typing import Any

import pytest

from tests.order.packed_datasets import documents, packing, write_frames
from tests.support.conversion import convert as converted
from tests.support.conversion import job_of
from tests.support.datasets import convert
from tests.support.examples import tf_example

FILES = (40, 1, 25, 0, 34)
"""Records of each input file, which becomes a shard."""

DOCUMENTS = documents(90, seed=1)
"""Those of `packed`."""


def png(side: int) -> bytes:
    """Returns a square image."""

    def part(name: bytes, data: bytes) -> bytes:
        size, check = struct.pack(">I", len(data)), zlib.crc32(name + data)
        return size + name + data + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    lines = b"".join(b"\0" + bytes([y, 99, 200]) * side for y in range(side))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (part(b"IHDR", head), part(b"IDAT", zlib.compress(lines)), part(b"IEND", b""))
    )


def example(number: int) -> bytes:
    """Returns a record that says its number, and is of a size of its own."""
    return tf_example(
        {
            "id": [number],
            "image": [png(1 + number % 5)],
            "text": [b"word " * (number % 9)],
            "weights": [0.5 * number, 1.0],
        }
    )


@pytest.fixture(scope="session")
def records() -> list[bytes]:
    """The records of `dataset`, in its order."""
    return [example(number) for number in range(sum(FILES))]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory, records) -> str:
    """A dataset of examples, three records in a chunk, one shard for each file."""
    folder = tmp_path_factory.mktemp("view")
    ends = [sum(FILES[: n + 1]) for n in range(len(FILES))]
    files = [records[end - n : end] for n, end in zip(FILES, ends, strict=True)]
    return convert(folder, files, group_size=3)


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> str:
    """A packed dataset, in three shards."""
    folder = tmp_path_factory.mktemp("packed")
    write_frames(folder / "in" / "x.tfrecord", DOCUMENTS)
    options = {"plan": ("num_shards", 3), "pack": packing()}
    converted(job_of(folder / "in", folder / "out", **options))
    return str(folder / "out")


def content_of(path: pathlib.Path) -> dict[str, Any]:
    """Returns what a page holds."""
    found = re.search(rb' id="content">(.*?)</script>', path.read_bytes(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])
