"""A dataset that a run has read, and that is not there any more."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.state_fields import Content
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.reading.batch_reader import BatchReader
from gristmill.loader.reading.shard_list import ShardList


class GoneDataset(Dataset):
    """In place of a dataset: it says how many records there were, and reads none.

    Args:
        path: Where the dataset was.
        content: What identified the records.
    """

    def __init__(self, path: str, content: Content):
        none = np.zeros(0, np.int64)
        shards = ShardList(
            starts=none,
            ends=none,
            file_records=none,
            file_bytes=none,
            name=path,
        )
        super().__init__(path=path, reader=BatchReader(shards))
        self._content = content

    def __len__(self) -> int:
        return self._content.records

    def __reduce__(self) -> tuple[Any, ...]:
        return GoneDataset, (self.path, self._content)

    def __repr__(self) -> str:
        edition = self._content.edition
        which = "" if edition is None else f", edition {edition}"
        return (
            f"<Dataset {self.path}{which}: {len(self):,} records, not there any more>"
        )

    @property
    def edition(self) -> int | None:
        """The edition that it was."""
        edition = self._content.edition
        return edition if isinstance(edition, int) else None

    @property
    def content(self) -> Content:
        """What identified the records."""
        return self._content

    def begins_with(self, content: Content) -> bool:
        """Returns whether all the records were these."""
        return self._content.is_same(content)

    def find(self, records: Any) -> NoReturn:
        """Raises InputError, as no record is there."""
        raise InputError(
            "the records are of an edition that is not there any more",
            where=self.path,
            expected="an edition that is kept",
            got=f"edition {self._content.edition}",
            cure="look at later steps; those of this edition cannot be read again",
        )

    def read_unchecked(self, records: Any, *, threads: int = 1) -> NoReturn:
        """Raises InputError, as no record is there."""
        self.find(records)

    def column(self, name: str) -> NoReturn:
        """Raises InputError, as no record is there."""
        self.find(name)
