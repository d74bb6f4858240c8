"""Columns to attach to a split: described beside the dataset, written, committed.

The edition stays the same, as its records do. The description is written before the
first file and deleted after the commit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill import __version__
from gristmill.dataset.base.columns import Done, Gathered, last_of_each
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    DataLossError,
    InputError,
    JobChangedError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.base.findings import UNREADABLE
from gristmill.dataset.columns.column_file import ColumnType, Values, encode_column
from gristmill.dataset.commit.commit import commit
from gristmill.dataset.commit.editions import with_columns
from gristmill.dataset.commit.garbage import delete_leftovers
from gristmill.dataset.commit.write import Write, write_ids
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    ColumnTable,
    StoredColumn,
    column_entries,
    read_column_table,
    read_values,
    write_column,
    write_column_table,
)
from gristmill.dataset.metadata.manifest import (
    Manifest,
    chosen_split,
    open_manifest,
    read_table,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for


class Attachment(NamedTuple):
    """Columns for the editions of a split.

    Attributes:
        write: Their write, which may replace columns of these names.
        editions: The `shards_digest` of each edition, by number.
        kinds: The types of the columns, by name.
        source: What attaches them, and from what.
    """

    write: Write
    editions: Mapping[int, str]
    kinds: Mapping[str, ColumnType]
    source: Mapping[str, Any]

    def gather(self, gathered: Gathered) -> None:
        """Notes the columns."""
        gathered.notes["begun"][""] = self

    def begin(self) -> None:
        """Describes the work beside the dataset."""
        editions = {str(n): digest for n, digest in self.editions.items()}
        self.write.describe(
            {"columns": {"names": list(self.kinds), "editions": editions}}
        )

    def check_current(self) -> None:
        """Raises JobChangedError if the work was given up, or is done."""
        self.write.check_current()
        if storage_for(self.write.output).stat(self.write.description) is None:
            raise JobChangedError(
                "another command has finished attaching these columns",
                where=self.write.where,
                cure="run this command again, one at a time: it says if all is done",
            )

    def publish(self, shard: str, column: str, data: bytes) -> StoredColumn:
        """Writes the values of a shard."""
        return write_column(self.write.output, shard, column, self.write.id, data)

    def table_path(self, edition: Split, column: str) -> str:
        """Returns the path of a column's table, relative to the dataset."""
        key = layout.write_key(self.write.split, edition.write)
        return layout.column_table_path(self.write.name, key, column, self.write.id)

    def tidy(self) -> None:
        """Deletes what a commit leaves to delete; `verify` names the rest."""
        write = self.write
        with contextlib.suppress(StorageError):
            storage_for(write.output).delete(write.description)
        delete_leftovers(write.output, write.name, ())


Facts = tuple[tuple[Any, ...], ...]
"""Names and numpy types of facts about a shard."""

_SHARD = (("edition", "<i4"), ("number", "<i4"))


class ShardTask(NamedTuple):
    """A shard whose records get values.

    Attributes:
        attachment: The columns that are attached.
        shard: Its path, relative to the dataset.
        edition: The number of its edition.
        number: Its number in the edition.
        first_record: Number, in the split, of its first record.
        digest: The digest of its records.
        file_bytes: Its size.
    """

    attachment: Attachment
    shard: str
    edition: int
    number: int
    first_record: int
    digest: RecordsDigest
    file_bytes: int

    @property
    def stop_record(self) -> int:
        """Number, in the split, of the record after its last."""
        return self.first_record + self.digest.records


def gather_row(
    gathered: Gathered, name: str, facts: Facts, task: ShardTask, *row: Any
) -> None:
    """Adds facts about a shard. A later row of the same shard replaces it."""
    packed = np.array((task.edition, task.number, *row), [*_SHARD, *facts])
    gathered.rows.setdefault(name, bytearray()).extend(packed.tobytes())


def gathered_rows(
    gathered: Gathered, name: str, facts: Facts, part: Split
) -> npt.NDArray[Any]:
    """Returns the facts about the shards of an edition, by the number of the shard.

    Raises:
        DataLossError: A shard has none.
    """
    rows = np.frombuffer(gathered.rows.get(name, b""), [*_SHARD, *facts])
    rows = rows[rows["edition"] == part.edition]
    found: npt.NDArray[Any] = rows[last_of_each(rows["number"])]
    if len(found) != part.shards:
        raise DataLossError(
            "not all shards of the split have got their values",
            where=f"edition {part.edition}",
            expected=f"{part.shards:,} shards",
            got=f"{len(found):,}",
            cure="run the same command again",
        )
    return found


def _file_facts(columns: int) -> Facts:
    return ("bytes", "<i8", (columns,)), ("crc32c", "<u4", (columns,))


class Written(NamedTuple):
    """The written values of a shard.

    Attributes:
        task: The shard.
        files: The file of each column.
    """

    task: ShardTask
    files: Mapping[str, StoredColumn]

    def gather(self, gathered: Gathered) -> None:
        """Adds the sizes and checksums of the files."""
        files = [self.files[name] for name in self.task.attachment.kinds]
        gather_row(
            *(gathered, "files", _file_facts(len(files)), self.task),
            [file.file_bytes for file in files],
            [file.file_crc32c for file in files],
        )

    @property
    def done(self) -> Done:
        """What was done."""
        task, said = self.task, f"values of {self.task.digest.records} records"
        return Done(task.shard, said, task.file_bytes, task.digest)


def write_values(task: ShardTask, values: Mapping[str, Values]) -> Written:
    """Writes the values of a shard, by column."""
    files = {}
    for name, kind in task.attachment.kinds.items():
        data = encode_column(kind, values[name], task.digest)
        files[name] = task.attachment.publish(task.shard, name, data)
    return Written(task, files)


def made_column(
    write: Write,
    column: str,
    entry: ColumnEntry,
    table: ShardTable,
    values: Iterable[Values | StoredColumn],
) -> Mapping[str, Any]:
    """Writes a column of the edition that a write makes, for `Split.columns`.

    Args:
        write: The write.
        column: The column's name.
        entry: The same column of other records.
        table: The shards of the edition.
        values: The values of each shard, or its file if that is kept.
    """
    files = []
    for shard, one in enumerate(values):
        if not isinstance(one, StoredColumn):
            data = encode_column(entry.kind, one, table.digest(shard))
            path = table.paths[shard]
            one = write_column(write.output, path, column, write.id, data)
        files.append(one)
    path = layout.column_table_path(write.name, write.key, column, write.id)
    found = ColumnTable.of(files, table)
    return write_column_table(
        write.output, path, entry.kind, found, source=entry.source
    ).described()


class AttachedSplit:
    """The current state of a split to attach columns to.

    Args:
        dataset: The dataset's directory.
        split: The split; None for the only one.
        overwrite: Whether columns of the same names are replaced.
    """

    def __init__(self, dataset: str, split: str | None, *, overwrite: bool = False):
        self.dataset, self.overwrite = dataset, overwrite
        self.manifest = open_manifest(dataset)
        self.name = chosen_split(split, self.manifest.splits, dataset)
        self.split: Split = self.manifest.splits[self.name]

    @classmethod
    def of(cls, attachment: Attachment) -> Self:
        """Returns the split that columns are attached to, as it is now."""
        write = attachment.write
        return cls(write.output, write.split, overwrite=write.replaces)

    def attachment(
        self, kinds: Mapping[str, ColumnType], how: Any, source: Mapping[str, Any]
    ) -> Attachment:
        """Returns the description of columns.

        Args:
            kinds: Their types, by name.
            how: All that decides their values, as plain values.
            source: The origin of their values.

        Raises:
            InputError: There is a column of this name, and it may not be replaced.
        """
        editions = {part.edition: part.shards_digest for part in self.split.parts}
        used = self.manifest.spent | self.split.writes
        for key in write_ids(self.name, how, sorted(kinds), sorted(editions.items())):
            write = Write(
                output=self.dataset,
                name=self.manifest.name,
                split=self.name,
                id=key,
                mark=key,
                replaces=self.overwrite,
            )
            found = Attachment(write, editions, kinds, source)
            there = kinds and self.has(found)
            if key not in used or (there and not self._lacks_values(found)):
                break
        taken = [n for n in kinds if any(n in p.columns for p in self.split.parts)]
        if taken and not self.overwrite and not self.has(found):
            raise InputError(
                f"there is a column {taken[0]!r} already",
                where=f"{self.dataset}, split {self.name}",
                cure="add --overwrite to replace it, or rename the column",
            )
        return found

    def is_done(self, attachment: Attachment) -> bool:
        """Returns whether columns are committed; tidies up after a killed commit."""
        done = self.has(attachment)
        if done:
            attachment.tidy()
        return done

    def has(self, attachment: Attachment) -> bool:
        """Returns whether the split has these columns already."""
        return all(
            part.columns.get(column, {}).get("table")
            == attachment.table_path(part, column)
            for part in self.split.parts
            for column in attachment.kinds
        )

    def _lacks_values(self, attachment: Attachment) -> bool:
        """Returns whether existing columns are damaged and may be replaced."""
        if not self.overwrite:
            return False
        try:
            for part, entries in zip(self.split.parts, self.entries(), strict=True):
                shards = self.table(part.edition)
                for name in attachment.kinds:
                    table = read_column_table(self.dataset, entries[name], shards)
                    for shard in range(len(table)):
                        read_values(self.dataset, entries[name].kind, table, shard)
        except UNREADABLE:
            return True
        return False

    def entries(self) -> list[dict[str, ColumnEntry]]:
        """Returns the columns of each edition."""
        return [column_entries(part, self.dataset) for part in self.split.parts]

    def tasks(self, attachment: Attachment) -> Iterator[ShardTask]:
        """Yields a task for each shard; raises StorageChangedError as `commit` does."""
        self.check_editions(attachment)
        first = 0
        for part in self.split.parts:
            table = self.table(part.edition)
            for number, path in enumerate(table.paths):
                digest, size = table.digest(number), int(table.file_bytes[number])
                yield ShardTask(
                    attachment, path, part.edition, number, first, digest, size
                )
                first += digest.records

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def table(self, edition: int) -> ShardTable:
        """Returns the table of the shards of an edition."""
        return read_table(self.dataset, self.split.part(edition))

    def check_editions(self, attachment: Attachment) -> None:
        """Raises StorageChangedError if the split has other editions."""
        with_columns(self.split, {}, attachment.editions, attachment.write)

    def commit(
        self, attachment: Attachment, gathered: Gathered, **more: Any
    ) -> Manifest:
        """Adds columns whose files are all written.

        Args:
            attachment: Their description.
            gathered: The `Written` of all shards, gathered.
            more: More about the origin of their values.

        Returns:
            The dataset as it is now.

        Raises:
            JobChangedError: The work was given up meanwhile.
            StorageChangedError: The split has other editions by now.
        """
        attachment.check_current()
        self.check_editions(attachment)
        facts = _file_facts(len(attachment.kinds))
        source = {**attachment.source, **more, "gristmill_version": __version__}
        made: dict[int, dict[str, Any]] = {}
        for part in self.split.parts:
            shards = self.table(part.edition)
            rows = gathered_rows(gathered, "files", facts, part)
            columns = made[part.edition] = {}
            for at, (name, kind) in enumerate(attachment.kinds.items()):
                sizes = rows["bytes"][:, at].tolist(), rows["crc32c"][:, at].tolist()
                paths = (
                    layout.column_path(path, name, attachment.write.id)
                    for path in shards.paths
                )
                table = ColumnTable.of(map(StoredColumn, paths, *sizes), shards)
                path = attachment.table_path(part, name)
                columns[name] = write_column_table(
                    self.dataset, path, kind, table, source=source
                ).described()

        def change(old: Manifest) -> Manifest:
            if (split := old.splits.get(self.name)) is None:
                raise StorageChangedError(
                    "the split is gone to which columns are attached",
                    where=attachment.write.where,
                    cure="run one command at a time on a dataset",
                )
            new = with_columns(split, made, attachment.editions, attachment.write)
            return dataclasses.replace(old, splits={**old.splits, self.name: new})

        manifest = commit(self.dataset, change, check=attachment.check_current)
        attachment.tidy()
        return manifest
