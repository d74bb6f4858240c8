"""Parts of a split: what several writers make, each in a directory of its own.

The number of shards is part of their names, and known when the last part is finished.
So the shards of a part are numbered by themselves:

```
.new-c4-train/                    the directory that the split is made in
  parts/00001-of-00004/           the second of four parts
    owner.json                    who makes it
    00000.array_record            its shards
    index/00000.array_record.index
    shards.npz                    their table, written last: the part is finished
```

The exchange that commits the split moves them to their places.
"""

from __future__ import annotations

import numpy as np

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.provenance import part_column, part_count
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

PARTS_DIR = "parts"


def part_dir(aside: str, part: int, parts: int) -> str:
    """Returns the directory of a part.

    >>> part_dir(".new-c4-train", 1, 4)
    '.new-c4-train/parts/00001-of-00004'
    """
    return layout.join(aside, PARTS_DIR, f"{part:05d}-of-{parts:05d}")


def staged_name(shard: int) -> str:
    """Returns the name of a shard in the directory of its part."""
    return f"{shard:05d}.array_record"


def staged_shards(aside: str, split: Split, table: ShardTable) -> dict[str, FileInfo]:
    """Returns the shards of parts that are not in their places yet.

    Args:
        aside: The directory that the split is made in.
        split: The split.
        table: Its shards.

    Returns:
        Where they are, by the path that each is to have. Nothing of a split that was
        not made in parts.
    """
    parts, found = part_count(split), {}
    if parts is None:
        return {}
    column = part_column(table, where=layout.join(aside, split.table))
    storage = storage_for(aside)
    for part in np.unique(column).tolist():
        place = part_dir(aside, part, parts)
        listed = {info.path: info for info in storage.list(place)}
        for shard, row in enumerate(np.flatnonzero(column == part).tolist()):
            path = layout.join(place, staged_name(shard))
            if path in listed:
                found[table.paths[row]] = listed[path]
    return found
