"""Columns that are being attached: described beside the dataset, written, committed.

The edition stays: the records do. The description is written before the first file and
deleted after the commit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import google_crc32c

from gristmill import __version__
from gristmill.dataset.base.errors import JobChangedError, StorageChangedError
from gristmill.dataset.commit.commit import commit
from gristmill.dataset.commit.editions import with_columns
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    StoredColumn,
)
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.lookup import storage_for

_FORMAT = "gristmill attachment"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attachment:
    """Columns for the editions of a split.

    Attributes:
        dataset: The dataset's directory.
        name: The dataset's name.
        split: The split.
        editions: The `shards_digest` of each edition, by number.
        columns: The names of the columns.
        key: The id of the write.
        replaces: Whether columns of these names are replaced.
    """

    dataset: str
    name: str
    split: str
    editions: Mapping[int, str]
    columns: tuple[str, ...]
    key: str
    replaces: bool = False

    @property
    def _write(self) -> Write:
        return Write(
            output=self.dataset,
            name=self.name,
            split=self.split,
            id=self.key,
            mark=self.key,
        )

    def begin(self) -> None:
        """Describes the work beside the dataset."""
        editions = {str(n): digest for n, digest in self.editions.items()}
        self._write.describe(
            {"columns": {"names": list(self.columns), "editions": editions}}
        )

    def check_current(self) -> None:
        """Raises JobChangedError if the work was given up, or is done."""
        self._write.check_current()
        if storage_for(self.dataset).stat(self._write.description) is None:
            raise JobChangedError(
                "another command has finished attaching these columns",
                where=self._write.where,
                cure="run this command again, one at a time: it says if all is done",
            )

    def table_path(self, edition: str, column: str) -> str:
        """Returns the path of a column's table, relative to the dataset.

        Args:
            edition: The `layout.write_key` of the edition.
            column: The column's name.
        """
        return layout.column_table_path(self.name, edition, column, self.key)

    def publish(self, shard: str, column: str, data: bytes) -> StoredColumn:
        """Writes the values of a shard."""
        path = layout.column_path(shard, column, self.key)
        storage_for(self.dataset).write(layout.join(self.dataset, path), data)
        return StoredColumn(path, len(data), google_crc32c.value(data))

    def commit(self, made: Mapping[int, Mapping[str, ColumnEntry]]) -> Manifest:
        """Adds the columns to `dataset.json`, and deletes the description.

        Args:
            made: The columns of each edition, by number and by name.

        Raises:
            JobChangedError: The work was given up meanwhile.
            StorageChangedError: The split has other editions by now.
        """
        described: dict[int, dict[str, Any]] = {
            number: {name: entry.described() for name, entry in columns.items()}
            for number, columns in made.items()
        }

        def change(old: Manifest | None) -> Manifest:
            split = None if old is None else old.splits.get(self.split)
            where = f"{self.dataset}, split {self.split}"
            if old is None or split is None:
                raise StorageChangedError(
                    "the split is gone to which columns are attached",
                    where=where,
                    cure="run one command at a time on a dataset",
                )
            changed = with_columns(
                split,
                described,
                dict(self.editions),
                where=where,
                replaces=self.replaces,
            )
            return dataclasses.replace(
                old,
                splits={**old.splits, self.split: changed},
                created_by=f"gristmill {__version__}",
            )

        manifest = commit(self.dataset, change, check=self.check_current)
        storage_for(self.dataset).delete(self._write.description)
        return manifest
