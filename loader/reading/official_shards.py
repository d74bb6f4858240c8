"""Reads records of local shards with the official reader, kept open between batches."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from gristmill.dataset.arrayrecord.official_reader import OfficialReader
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.loader.reading.read_plan import ReadPlan, corrupt_record

# A reader has the footer of its file in memory.
_OPEN_READERS = 256


class OfficialShards:
    """Official readers of local shards, opened when needed. Safe to share by threads.

    Args:
        options: For the official reader, beside those for random reads.
    """

    def __init__(self, options: Mapping[str, str]):
        options = {"readahead_buffer_size": "0", **options}
        self._open = functools.partial(OfficialReader, options=options)
        self._opened = functools.lru_cache(_OPEN_READERS)(self._open)

    def read(self, plan: ReadPlan) -> list[bytes]:
        """Returns the wanted records of a plan of one shard.

        Raises CorruptShardError, which names the first damaged record.
        """
        path = plan.files[0].path
        try:
            return self._opened(path).read_records(plan.number.tolist())
        except CorruptShardError as e:
            # After an error, a reader fails to read anything else.
            self._opened.cache_clear()
            item = self._first_damaged(plan, path)
            raise corrupt_record(plan, item, got=e.got or e.what) from e

    def _first_damaged(self, plan: ReadPlan, path: str) -> int:
        """Returns the place in the plan of the first record that cannot be read."""
        good = 0
        try:
            with self._open(path) as reader:
                for number in plan.number.tolist():
                    reader.read_records([number])
                    good += 1
        except CorruptShardError:
            return good
        return 0

    def close(self) -> None:
        """Forgets all readers, which closes them."""
        self._opened.cache_clear()
