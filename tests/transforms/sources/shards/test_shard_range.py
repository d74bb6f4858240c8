"""Ranges of shards: every record once, and none that is bad."""

from __future__ import annotations

import itertools
import pathlib
import pickle

import pytest

from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.metadata import layout
from gristmill.transforms.sources.shards.open_shard import (
    ChunkRange,
    cut_at_chunks,
    list_shards,
)
from tests.support.conversion import dataset_of, shards_of
from tests.support.records import (
    AWKWARD_RECORDS,
    footer_of,
    text_records,
    write_array_records,
)

RECORDS = [*text_records(1500), *AWKWARD_RECORDS]


def test_range_bytes_decides_the_number_of_ranges(tmp_path: pathlib.Path) -> None:
    dataset = dataset_of(tmp_path, [b"x" * 5000] * 300, compression="uncompressed")
    shards = list(list_shards([str(dataset)], None))
    assert [shard.records for shard in shards] == [100] * 3
    for range_bytes, count in ((100_000, 6), (1 << 20, 1), (1, 100)):
        cuts = list(cut_at_chunks(shards[0], range_bytes))
        assert len(cuts) == count
        numbers = [cut[1:] for cut in cuts]
        assert numbers[0][0] == 0
        assert numbers[-1][1] == 100
        assert all(a[1] == b[0] for a, b in itertools.pairwise(numbers))
        found = [
            (number, record)
            for cut in cuts
            for batch in cut.batches()
            for number, record in zip(batch.places, batch.records, strict=True)
        ]
        assert found == [(number, b"x" * 5000) for number in range(100)]
        assert len(pickle.dumps(cuts[0])) < 500


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options",
    ["group_size:1,uncompressed", "group_size:9,zstd:3"],
)
def test_damage_in_files_without_dataset(
    tmp_path: pathlib.Path, options: str, hashing: str
) -> None:
    path = tmp_path / "plain.ar"
    write_array_records(path, RECORDS[:300], options=options)
    good = path.read_bytes()
    begin, end = footer_of(good).chunk_offsets[[0, -1]].tolist()
    (shard,) = list_shards([str(path)], None)
    chunks = len(footer_of(good).chunk_records)
    count = 40 if hashing == "compiled" else 8  # Damage is looked for singly.
    for at in range(begin, end, (end - begin) // count):
        data = bytearray(good)
        data[at] ^= 0x02
        path.write_bytes(data)
        with pytest.raises(CorruptShardError, match=r"plain\.ar"):
            list(ChunkRange(shard, 0, chunks).batches())


@pytest.mark.parametrize("what", ["shard", "index", "short", "other", "records"])
def test_files_that_are_not_the_dataset(tmp_path: pathlib.Path, what: str) -> None:
    dataset = dataset_of(tmp_path, text_records(90))
    first, second, _ = shards_of(dataset)
    shard, index = dataset / first, dataset / layout.index_path(first)
    if what == "shard":
        shard.unlink()
    elif what == "index":
        index.unlink()
    elif what == "short":
        shard.write_bytes(shard.read_bytes()[:-65536])
    elif what == "other":
        index.write_bytes((dataset / layout.index_path(second)).read_bytes())
    else:
        write_array_records(shard, [b"one"])
    task = next(iter(list_shards([str(dataset)], None)))
    errors = {"index": "cannot read the index", "other": "not the one of this shard"}
    errors |= {"records": "not the one that the dataset describes"}
    with pytest.raises((CorruptShardError, OSError), match=errors.get(what, "size")):
        list(ChunkRange(task, 0, 1).batches())
