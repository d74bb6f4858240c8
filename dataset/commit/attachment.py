"""Columns that are being attached: described beside the dataset, written, committed.

The number of the edition stays: the records do. So the description, which other
commands leave alone, has a name of its own. It is written before the first file and
deleted after the commit; files that neither it nor `dataset.json` names are garbage.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import google_crc32c

from gristmill import __version__
from gristmill.dataset.base.errors import JobChangedError, StorageChangedError
from gristmill.dataset.commit.claim import fence
from gristmill.dataset.commit.commit import commit
from gristmill.dataset.commit.editions import with_columns
from gristmill.dataset.commit.listings import walk
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    StoredColumn,
)
from gristmill.dataset.metadata.kinds import ATTACHMENT
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.base import FileInfo
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
        key: 16 digits that identify what is attached to which records.
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
    def _place(self) -> str:
        path = layout.attachment_path(self.name, self.split, self.key)
        return layout.join(self.dataset, path)

    def begin(self) -> None:
        """Describes the work beside the dataset."""
        fields = {
            "format": _FORMAT,
            "columns": list(self.columns),
            "editions": {str(n): digest for n, digest in self.editions.items()},
        }
        text = json.dumps(fields, indent=2) + "\n"
        storage_for(self.dataset).write(self._place, text.encode())

    def check_current(self) -> None:
        """Raises JobChangedError if the work was given up, or is done."""
        if storage_for(self.dataset).stat(self._place) is None:
            raise JobChangedError(
                "another command has finished attaching these columns, or given it up",
                where=self._place,
                cure="run this command again, one at a time: it says if all is done",
            )

    def table_path(self, edition: int, column: str) -> str:
        """Returns the path of a column's table, relative to the dataset."""
        key = layout.edition_key(self.split, edition)
        return layout.column_table_path(self.name, key, column, self.key)

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
            if old is None or split is None:
                raise StorageChangedError(
                    "the split is gone to which columns are attached",
                    where=f"{self.dataset}, split {self.split}",
                    cure="run one command at a time on a dataset",
                )
            changed = with_columns(
                split, described, dict(self.editions), replaces=self.replaces
            )
            return dataclasses.replace(
                old,
                splits={**old.splits, self.split: changed},
                created_by=f"gristmill {__version__}",
            )

        manifest = commit(self.dataset, change, check=self.check_current)
        storage_for(self.dataset).delete(self._place)
        return manifest


def give_up_attachments(
    dataset: str, manifest: Manifest, split: str
) -> Iterator[FileInfo]:
    """Deletes the descriptions of columns that are being attached, and yields them.

    Who attaches them still, fails; their files are garbage.
    """
    found = walk(dataset, (ATTACHMENT,), layout.parts_of(manifest.name, split))
    if begun := [one.info for one in found]:
        storage_for(dataset).delete_all(begun)
        fence(dataset)  # Who has found its description by now cannot commit any more.
    yield from begun
