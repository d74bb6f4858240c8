"""The records that every loader of the test of resuming reads, in its own format."""

import functools

import numpy as np

from benchmarks.resume.formats import write_files

SHARDS, ADDED_SHARDS = 16, 2
# Numbers of the records of another dataset begin here.
_OTHER = 1_000_000


def shards_of(first, shards, shard_records):
    """Yields the records of shards: of 8 to 56 tokens, and numbered one by one."""
    for shard in range(first, first + shards * shard_records, shard_records):
        numbers = np.arange(shard, shard + shard_records, dtype="<u4")
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        lengths = (8 + (mixed >> np.uint64(40)) % np.uint64(49)).tolist()
        yield [
            number.tobytes() * length
            for number, length in zip(numbers, lengths, strict=True)
        ]


def write_all(adapter, folder, shard_records, append):
    """Writes all datasets, or adds records to one.

    They are `plain`, `other` (as many records with other numbers), the parts `first`
    and `second` of a mixture, and `packed` where the loader packs data of another kind.

    Args:
        adapter: The module of a loader.
        folder: Where they are.
        shard_records: Records of a shard.
        append: Add records to `plain` instead.
    """
    write = getattr(adapter, "write", None)
    write = write or functools.partial(write_files, suffix=adapter.FORMAT)
    if append:
        added = shards_of(SHARDS * shard_records, ADDED_SHARDS, shard_records)
        getattr(adapter, "append", write)(folder / "plain", added)
        return
    part = SHARDS * 3 // 4
    for which, first, shards in (
        ("plain", 0, SHARDS),
        ("other", _OTHER, SHARDS),
        ("first", 0, part),
        ("second", part * shard_records, SHARDS - part),
    ):
        write(folder / which, shards_of(first, shards, shard_records))
    if hasattr(adapter, "write_packed"):
        packed = shards_of(0, SHARDS, shard_records)
        adapter.write_packed(folder / "packed", packed)
