"""How much is read, decoded and kept open at a time."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Sizes that decide how records are read, and not which.

    Attributes:
        part_bytes: A batch is decoded in parts of this size, as it is in the files:
            memory follows the records that are wanted, and not the batch's size.
        large_chunk_bytes: A larger chunk of one record is decoded by itself, without
            being copied.
        large_group_bytes: So is a larger chunk of many records if one is wanted: it is
            decoded no further than to the end of that record.
        open_shards: Most shards that are kept open. Linux allows a process 65,530
            maps, and a shard takes two.
        used_shards: Most shards that a reader uses at a time besides those.
    """

    part_bytes: int = 4 << 20
    large_chunk_bytes: int = 24 << 10
    large_group_bytes: int = 128 << 10
    open_shards: int = 24_000
    used_shards: int = 4_000


READ_LIMITS = ReadLimits()
