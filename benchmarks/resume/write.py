"""The datasets of one loader of the test of resuming."""

from __future__ import annotations

import importlib
import pathlib

from benchmarks.resume.records import ADDED_SHARDS, OTHER, SHARDS, shards_of


def write(
    loader: str, folder: pathlib.Path, shard_records: int, append: bool = False
) -> None:
    """Writes all datasets, or adds records to one.

    They are `plain`, `other` (as many records with other numbers), the parts `first`
    and `second` of a mixture, and `packed` where the loader packs data of another kind.

    Args:
        loader: Name of the adapter.
        folder: Where they are.
        shard_records: Records of a shard.
        append: Add records to `plain` instead.
    """
    adapter = importlib.import_module(f"benchmarks.resume.loaders.{loader}")
    if append:
        added = shards_of(SHARDS * shard_records, ADDED_SHARDS, shard_records)
        adapter.append(folder / "plain", added)
        return
    part = SHARDS * 3 // 4
    for which, first, shards in (
        ("plain", 0, SHARDS),
        ("other", OTHER, SHARDS),
        ("first", 0, part),
        ("second", part * shard_records, SHARDS - part),
    ):
        adapter.write(folder / which, shards_of(first, shards, shard_records))
    if hasattr(adapter, "write_packed"):
        packed = shards_of(0, SHARDS, shard_records)
        adapter.write_packed(folder / "packed", packed)
