"""Copies of shards from object storage on a local disk, shared by a host's processes.

A copy has its name only when it is whole and has the checksum of its shard. It is found
by what the dataset says of all its shards, so that another dataset never meets it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class ShardCache:
    """Copies of the shards of one dataset, in a directory for all datasets of a host.

    Args:
        directory: That of all datasets.
        key: Differs between datasets of different content.
        cache_bytes: Most bytes of all copies in the directory.
        file_bytes: int64 [shards], the size of each shard.
        file_crc32cs: uint32 [shards], its crc32c.
    """

    def __init__(
        self,
        directory: str,
        *,
        key: str,
        cache_bytes: int,
        file_bytes: npt.NDArray[np.int64],
        file_crc32cs: npt.NDArray[np.uint32],
    ):
        self._directory, self._key, self._cache_bytes = directory, key, cache_bytes
        self._file_bytes, self._file_crc32cs = file_bytes, file_crc32cs
