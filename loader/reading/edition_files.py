"""Names the files of a dataset's shards on this host, in a directory for each edition.

A directory is named after the content of its edition. So what was fetched before
records were appended is used after it, and by who opens an older edition.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Sequence


class EditionFiles:
    """Places of files of the shards of a split.

    Args:
        root: The directory that has those of the editions.
        keys: The name of each, which differs between editions of different content.
        shards: [editions], how many shards each edition has.

    Attributes:
        directories: [editions], the directory of each.
    """

    def __init__(self, root: str, *, keys: Sequence[str], shards: Sequence[int]):
        self.directories = [os.path.join(root, key) for key in keys]
        ends = list(itertools.accumulate(shards, initial=0))
        self._firsts = ends[: len(self.directories)]

    def path(self, shard: int, suffix: str) -> str:
        """Returns the place of a file, given the number of its shard in the split."""
        edition = bisect.bisect_right(self._firsts, shard) - 1
        number = shard - self._firsts[edition]
        return f"{self.directories[edition]}/{number:08d}{suffix}"
