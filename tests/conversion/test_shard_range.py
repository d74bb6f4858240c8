"""Ranges of shards: every record once, and none that is bad."""

from __future__ import annotations

import pathlib
import pickle

import pytest

from gristmill.dataset.base.errors import CorruptShardError
from gristmill.transforms.beam.read_ranges import FileRange
from gristmill.transforms.sources.shards.source_split import list_shards
from gristmill.transforms.sources.source import source_of
from tests.support.conversion import dataset_of
from tests.support.records import (
    AWKWARD_RECORDS,
    footer_of,
    text_records,
    write_array_records,
)

RECORDS = [*text_records(1500), *AWKWARD_RECORDS]


def ranges_of(path: pathlib.Path, range_bytes: int) -> list[FileRange]:
    """Returns the ranges of a file, or of the first shard of a dataset."""
    file = next(iter(list_shards([str(path)], None)))
    cuts = source_of(file.spec).cut(file, range_bytes=range_bytes)
    return [FileRange(file, begin, end) for begin, end in cuts]


def test_range_bytes_decides_the_number_of_ranges(tmp_path: pathlib.Path) -> None:
    dataset = dataset_of(tmp_path, [b"x" * 5000] * 300, compression="uncompressed")
    for range_bytes, count in ((100_000, 6), (1 << 20, 1), (1, 100)):
        ranges = ranges_of(dataset, range_bytes)
        assert len(ranges) == count
        found = [
            (number, record)
            for one in ranges
            for batch in one.batches()
            for number, record in zip(batch.places, batch.records, strict=True)
        ]
        assert found == [(number, b"x" * 5000) for number in range(100)]
        assert len(pickle.dumps(ranges[0])) < 1000


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options",
    ["group_size:1,uncompressed", "group_size:9,zstd:3"],
)
def test_damage_in_files_without_dataset(
    tmp_path: pathlib.Path, options: str, decoding: str
) -> None:
    path = tmp_path / "plain.ar"
    write_array_records(path, RECORDS[:300], options=options)
    good = path.read_bytes()
    begin, end = footer_of(good).chunk_offsets[[0, -1]].tolist()
    (whole,) = ranges_of(path, 1 << 30)
    count = 40 if decoding == "compiled" else 8  # Damage is looked for singly.
    for at in range(begin, end, (end - begin) // count):
        data = bytearray(good)
        data[at] ^= 0x02
        path.write_bytes(data)
        with pytest.raises(CorruptShardError, match=r"plain\.ar"):
            list(whole._replace(file=whole.file._replace(version=None)).batches())
