"""The shards that `benchmarks.load` reads: text, binary, alone and in groups."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks import c4_like

GROUP_SIZES = (1, 16)
_FILES = 4
_BINARY_MEAN_BYTES = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """A dataset to read.

    Attributes:
      name: such as "text_g16".
      directory: of the committed dataset.
      tfrecords: the files that it was made of.
      batch_size: records that one batch has.
      records: records in all.
      record_bytes: mean size of a record.
    """

    name: str
    directory: str
    tfrecords: tuple[str, ...]
    batch_size: int
    records: int
    record_bytes: float

    @property
    def paths(self) -> list[str]:
        """The shards, in order."""
        return sorted(map(str, pathlib.Path(self.directory).glob("*.array_record-*")))


def write_shards(
    work_dir: pathlib.Path, *, text_bytes: int, binary_bytes: int
) -> list[Shards]:
    """Writes TFRecords and converts them, with the group sizes of the benchmark.

    Args:
      work_dir: gets all files, and a list of them for `read_shards`.
      text_bytes: of text records, 2.2 KB each.
      binary_bytes: of binary records, 100 KB each.
    """
    found = []
    for kind, size_bytes, batch_size in (
        ("text", text_bytes, 1024),
        ("binary", binary_bytes, 64),
    ):
        source = work_dir / kind
        if kind == "text":
            written = c4_like.write_dataset(source, size_bytes=size_bytes, files=_FILES)
        else:
            written = _write_binary(source, size_bytes)
        records = sum(file.records for file in written)
        for group_size in GROUP_SIZES:
            name = f"{kind}_g{group_size}"
            command = [
                sys.executable,
                "-m",
                "gristmill",
                "convert",
            ]
            command += [str(file.path) for file in written] + [str(work_dir / name)]
            command += ["--match-shards", f"--group-size={group_size}"]
            subprocess.run(
                [*command, "--compression=zstd:3", "--workers=1"],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            found.append(
                Shards(
                    name=name,
                    directory=str(work_dir / name),
                    tfrecords=tuple(str(file.path) for file in written),
                    batch_size=min(batch_size, records),
                    records=records,
                    record_bytes=sum(file.size_bytes for file in written) / records
                    - 16,
                )
            )
    listed = [dataclasses.asdict(shards) for shards in found]
    (work_dir / "shards.json").write_text(json.dumps(listed))
    return found


def read_shards(work_dir: pathlib.Path) -> list[Shards]:
    """Returns the output of `write_shards`."""
    listed = json.loads((work_dir / "shards.json").read_text())
    return [
        Shards(**{**fields, "tfrecords": tuple(fields["tfrecords"])})
        for fields in listed
    ]


def _write_binary(
    directory: pathlib.Path, size_bytes: int
) -> list[c4_like.WrittenFile]:
    """Writes records that do not compress, as images and sound do not."""
    directory.mkdir(parents=True)
    written = []
    for index in range(_FILES):
        path = directory / f"binary-train.tfrecord-{index:05}-of-{_FILES:05}"
        records = written_bytes = 0
        with open(path, "wb") as file:
            for record in _binary_records(index):
                written_bytes += file.write(c4_like.frame_record(record))
                records += 1
                if written_bytes >= size_bytes / _FILES:
                    break
        written.append(
            c4_like.WrittenFile(path=path, records=records, size_bytes=written_bytes)
        )
    return written


def _binary_records(seed: int) -> Iterator[bytes]:
    chance = np.random.default_rng(seed)
    while True:
        size = int(chance.uniform(0.5, 1.5) * _BINARY_MEAN_BYTES)
        yield c4_like.encode_example(
            {b"image": chance.bytes(size), b"label": b"%d" % (size % 1000)}
        )
