"""The records of an opened dataset, by their numbers."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.system import usable_cores
from gristmill.dataset.metadata.features import (
    FeatureSpec,
    described_features,
    joined_features,
)
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.loader.base.indices import (
    IntArray,
    checked_index,
    checked_indices,
    counted_from_end,
)
from gristmill.loader.reading.batch_reader import BatchReader
from gristmill.loader.reading.shard_list import ShardList
from gristmill.loader.remote.read_options import (
    NOT_CACHED,
    CacheCounts,
    ReadCounts,
    ReadOptions,
)

if TYPE_CHECKING:
    from gristmill.dataset.columns.column_file import ColumnType
    from gristmill.loader.columns.column import Column, ColumnPart


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One shard of a dataset.

    Attributes:
        path: The file.
        first_record: Number, in the dataset, of its first record.
        records: How many records it has.
        file_bytes: Size of the file, where known.
        records_digest: Order-independent digest of its records, where known.
        edition: The edition of its split that it was made for, where known.
        spans: The ranges of source files that it was made from, where known. Numbers of
            files are those of the edition.
        dropped_records: Source records for which the user's function returned none.
        added_records: Records that it returned beyond one for each.
    """

    path: str
    first_record: int
    records: int
    file_bytes: int | None
    records_digest: str | None
    edition: int | None
    spans: tuple[SourceSpan, ...]
    dropped_records: int
    added_records: int


class Content(NamedTuple):
    """The identity of a dataset's records, in their order.

    Attributes:
        edition: The last edition of its split, if it has editions; of joined datasets
            that of each.
        records: Number of records.
        records_digest: Order-independent digest of all records, if known.
        order_digest: As in `Dataset.order_digest`.
    """

    edition: int | tuple[int | None, ...] | None
    records: int
    records_digest: str | None
    order_digest: str

    def is_same(self, other: Content) -> bool:
        """Returns whether the records are the same, in any edition."""
        return self[1:] == other[1:]


_BLOCK_RECORDS = 1 << 16
_BLOCK_BITS = 1 << 24

Reopen: TypeAlias = Callable[[tuple[str | None, int, int]], "Dataset"]
"""Opens a dataset again, and refuses another digest or count of records or shards."""


class Chosen(NamedTuple):
    """A selection: the records that it is of, which of them, and the condition.

    The numbers are ascending, uint32 or int64 [records].
    """

    whole: Dataset
    numbers: npt.NDArray[Any]
    text: str

    def digest(self) -> bytes:
        """Returns a SHA-256 over the number of all records, and a bit for each."""
        total = len(self.whole)
        hasher = hashlib.sha256(total.to_bytes(8, "little"))
        for begin in range(0, -(-total // 512) * 512, _BLOCK_BITS):
            end = min(begin + _BLOCK_BITS, -(-total // 512) * 512)
            own = slice(*np.searchsorted(self.numbers, [begin, end]))
            bits = np.zeros(end - begin, bool)
            bits[self.numbers[own] - begin] = True
            hasher.update(np.packbits(bits, bitorder="little").tobytes())
        return hasher.digest()


class Dataset(Sequence[bytes]):
    """The records of a dataset, by number. Made by `open`; safe to share among threads.

    `dataset[i]` is a record and counts from the end if negative; `dataset[[i, j, k]]`
    and `dataset[i:j]` are lists of records, read at once. It pickles as what was opened
    and how: a worker process opens it again, and refuses different content.
    """

    def __init__(
        self,
        *,
        path: str,
        reader: BatchReader,
        reopen: Reopen | None = None,
        editions: Callable[[Any], Dataset] | None = None,
        split: str | None = None,
        table: ShardTable | None = None,
        manifest: Manifest | None = None,
        parts: Sequence[Dataset] = (),
        chosen: Chosen | None = None,
    ):
        self._path, self._split = path, split
        self._joined = tuple(parts)
        self._table, self._manifest = table, manifest
        self._reader, self._shards = reader, reader.shards
        self._reopen, self._chosen = reopen, chosen
        # Callers tend to ask for the same edition repeatedly.
        self._editions = editions and functools.lru_cache(maxsize=4)(editions)

    def __len__(self) -> int:
        chosen = self._chosen
        return self._shards.records if chosen is None else len(chosen.numbers)

    def __repr__(self) -> str:
        if self._chosen is not None:
            whole, _, text = self._chosen
            counts = f"{len(self):,} of {len(whole):,} records"
            return f"<Dataset {self._shards.name}, where {text}: {counts}>"
        return (
            f"<Dataset {self._shards.name}: {len(self):,} records in "
            f"{self.num_shards:,} shard{'s' * (self.num_shards != 1)}>"
        )

    @property
    def path(self) -> str:
        """The directory, or the first of plain files, or of joined datasets."""
        return self._path

    @property
    def split(self) -> str | None:
        """The split, None for plain files and joined datasets."""
        return self._split

    @property
    def manifest(self) -> Manifest | None:
        """What `dataset.json` says, up to this edition; None without one, or joined."""
        return self._manifest

    @property
    def edition(self) -> int | None:
        """The newest edition of the split that it holds, None if there are none.

        The numbers of all that it holds are in `committed.numbers`. A selection has
        none.
        """
        split = None if self._chosen else self.committed
        return None if split is None else split.edition

    @property
    def committed(self) -> Split | None:
        """The split in `dataset.json`, None if there is none."""
        if self._manifest is None or self._split is None:
            return None
        return self._manifest.splits[self._split]

    def as_of(self, edition: int | Sequence[int | None]) -> Dataset:
        """Returns the dataset as it was when an edition was the last.

        Its records have the numbers, and batches of them the order, that they had then.

        Args:
            edition: The edition; for joined datasets those of the first of them, None
                for one as it is.

        Raises:
            InputError: There was no such edition when this dataset was opened, or it is
                not kept.
        """
        whole = self if self._chosen is None else self._chosen.whole
        if edition == whole.edition:
            return self
        if self._chosen is not None:
            raise InputError(
                "a selection of another edition is asked for",
                where=repr(self),
                expected=f"edition {whole.edition}",
                got=f"edition {edition}",
                cure=f"open the dataset with edition={edition}, and select there",
            )
        if self._editions is None:
            raise InputError(
                "only datasets that gristmill made have editions",
                where=self._shards.name,
                got=f"edition {edition}",
                cure="leave edition out, or make it a dataset with `gristmill index`",
            )
        return self._editions(edition)

    @property
    def features(self) -> Mapping[str, FeatureSpec] | None:
        """The features of its `tf.train.Example` records, None if not known.

        For a dataset made by TFDS, these are the features of `features.json`, as far as
        one list holds each: not sequences of sequences, video or audio. A feature that
        only some editions or joined datasets have is optional.

        Raises InvalidDatasetError if `dataset.json` describes them in an unknown way.
        """
        if len(self.parts) > 1:
            return joined_features([part.features for part in self.parts])
        split, manifest = self.committed, self._manifest
        if split is None or manifest is None:
            return None
        if split.features is None and manifest.features is not None:
            from gristmill.dataset.metadata.tfds import parse_tfds_features

            return parse_tfds_features(manifest.features) or None
        where = f"{self._path}, split {self._split}"
        return described_features(split.features, where=where)

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        """The types of the columns beside its records, by name.

        Only those that all its editions, and all joined datasets, have alike.
        """
        from gristmill.loader.columns.column import column_types

        return column_types(self._column_parts())

    def column(self, name: str) -> Column:
        """Returns a column that was attached to the records, as an array.

        Its values are loaded when they are indexed, each compared with its checksum.

        Raises:
            InputError: There is no such column, or not for all records.
            InvalidDatasetError: It was attached to other records, or is damaged.
        """
        if (chosen := self._chosen) is not None:
            return chosen.whole.column(name).taken(chosen.numbers)
        from gristmill.loader.columns.column import joined_column

        parts = self._column_parts()
        return joined_column(name, parts, self._shards.ends, where=repr(self))

    def _column_parts(self) -> list[ColumnPart]:
        from gristmill.loader.columns.column import ColumnPart

        return [
            ColumnPart(part.path, part.committed, part._table, part._shards.name)
            for part in self.parts
        ]

    def select(self, condition: str | npt.ArrayLike) -> Dataset:
        """Returns a dataset of some of the records: those that fulfil a condition.

        They keep their order and are numbered from 0. It is a dataset like any other,
        in batches, mixtures and states, and pickles with its selection, which takes 4
        bytes of memory for each selected record (8 of datasets above 2^32 records).

        Args:
            condition: An expression over columns that are numbers, booleans or texts,
                such as `score > 0.5 and language in ("de", "fr")`; or a boolean for
                each record.

        Raises:
            InputError: The expression cannot be read, there is no such column, or the
                booleans are not as many as the records.
            InvalidDatasetError: A column is damaged, or belongs to other records.
        """
        from gristmill.dataset.columns.expression import Expression

        total, text = len(self), "chosen by array"
        if isinstance(condition, str):
            text = condition
            expression = Expression(condition, self.columns)
            columns = {name: self.column(name) for name in expression.names}
            found = []
            for begin in range(0, total, _BLOCK_RECORDS):
                rows = np.arange(begin, min(begin + _BLOCK_RECORDS, total))
                values = {name: column.read(rows) for name, column in columns.items()}
                found.append(
                    rows[np.broadcast_to(expression.evaluate(values), len(rows))]
                )
            numbers = np.concatenate(found or [np.zeros(0, np.int64)])
        else:
            booleans = np.asarray(condition)
            if booleans.dtype != np.bool_ or booleans.shape != (total,):
                raise InputError(
                    "records are selected neither by an expression nor by booleans",
                    where=repr(self),
                    expected=f"an expression, or booleans of shape ({total:,},)",
                    got=f"{booleans.dtype} of shape {booleans.shape}",
                    cure="give an expression such as 'score > 0.5', or a boolean array",
                )
            numbers = np.flatnonzero(booleans)
        small = total < 1 << 32
        return _selected(self, numbers.astype(np.uint32 if small else np.int64), text)

    def numbers_here(self, records: IntArray) -> IntArray:
        """Returns how many of its records come before each of its shards' records.

        Args:
            records: int64 [n], numbers of records of the shards, or one past the last.
        """
        if (chosen := self._chosen) is None:
            return records
        whole = chosen.whole.numbers_here(records).astype(chosen.numbers.dtype)
        return np.searchsorted(chosen.numbers, whole)

    @property
    def parts(self) -> tuple[Dataset, ...]:
        """The datasets that were joined, or the one that has all records."""
        return self._joined or (self,)

    @property
    def mean_record_bytes(self) -> float | None:
        """Mean size of the records before compression, selected or not, where known."""
        tables = [part._table for part in self.parts]
        sizes = [table.total("raw_bytes") for table in tables if table is not None]
        if len(sizes) < len(tables):
            return None
        return sum(sizes) / max(self._shards.records, 1)

    @property
    def read_options(self) -> ReadOptions | None:
        """How object storage is read, None for a dataset on a local disk."""
        remote = self._shards.remote
        return None if remote is None else remote.fetcher.options

    @property
    def cache_counts(self) -> CacheCounts:
        """What the local cache of shards did for this process; all 0 without one."""
        remote = self._shards.remote
        return NOT_CACHED if remote is None else remote.counter.counts

    @property
    def request_counts(self) -> ReadCounts:
        """What this process has requested from object storage; all 0 on local disks."""
        remote = self._shards.remote
        if remote is None:
            return ReadCounts()
        return dataclasses.replace(remote.fetcher.counts)

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self._shards)

    @property
    def records_digest(self) -> str | None:
        """Order-independent digest of all records, where known."""
        return self.content.records_digest

    @property
    def order_digest(self) -> str:
        """Half a SHA-256 over what is known of the records of each shard, in order.

        It covers how many records each shard has and their digest, or the size of the
        file where there is no digest. It changes with the order of records, except
        within a shard, and with how they are divided into shards.
        """
        return self.content.order_digest

    @functools.cached_property
    def content(self) -> Content:
        """What identifies the records, in their order."""
        if (chosen := self._chosen) is not None:
            whole, digest = chosen.whole.content, chosen.digest()
            names = (f"{whole.records_digest} {whole.order_digest} {n}" for n in (0, 1))
            own = [hashlib.sha256(n.encode() + digest).hexdigest()[:32] for n in names]
            return Content(None, len(self), *own)
        edition: int | tuple[int | None, ...] | None = self.edition
        if len(self.parts) > 1:
            edition = tuple(part.edition for part in self.parts)
        return self._first_shards(self.num_shards)._replace(edition=edition)

    def begins_with(self, content: Content) -> bool:
        """Returns whether the first shards have these records, by their digests.

        Of a selection, whether all its records are these.
        """
        if self._chosen is not None:
            return self.content.is_same(content)
        ends = self._shards.ends
        first = int(np.searchsorted(ends, content.records, side="left")) + 1
        last = int(np.searchsorted(ends, content.records, side="right"))
        # More than one where shards are empty.
        counts = range(first, last + 1)
        return any(self._first_shards(count).is_same(content) for count in counts)

    def _first_shards(self, shards: int) -> Content:
        """Returns the identity of the records of the first shards, in their order."""
        tables: list[tuple[ShardTable | None, slice]] = []
        left = shards
        for part in self.parts:
            if left > 0 or not tables:
                tables.append((part._table, slice(left)))
            left -= part.num_shards
        columns = [np.diff(self._shards.ends[:shards], prepend=0)]
        known = [(table, rows) for table, rows in tables if table is not None]
        digest = None
        if len(known) == len(tables):
            for name in ("digest_low", "digest_high"):
                found = [table.columns[name][rows] for table, rows in known]
                columns.append(np.concatenate(found))
            total = sum((t.digest(rows) for t, rows in known), RecordsDigest())
            digest = total.hex
        else:
            sizes = self._shards.starts, self._shards.file_bytes
            columns += [column[:shards] for column in sizes]
        hasher = hashlib.sha256()
        for column in columns:
            hasher.update(column.astype("<u8").tobytes())
        return Content(None, int(columns[0].sum()), digest, hasher.hexdigest()[:32])

    @functools.cached_property
    def _packed(self) -> PackedCounts | None:
        tables = [part._table for part in self.parts]
        totals = [None if table is None else table.packed_total() for table in tables]
        found = [total for total in totals if total is not None]
        return sum(found, PackedCounts()) if len(found) == len(totals) else None

    @property
    def is_packed(self) -> bool:
        """Whether the records are packed rows."""
        return self._packed is not None

    def packed_counts(self) -> PackedCounts | None:
        """Returns the counts of its packed rows; None for others, or a selection."""
        return None if self._chosen else self._packed

    def shard(self, index: int) -> ShardInfo:
        """Returns the facts known about a shard, without opening it.

        Raises:
            OutOfRangeError: There is no such shard.
        """
        shard = checked_index(index, stop=self.num_shards, what="shard")
        first, end = self._shards.first_record(shard), int(self._shards.ends[shard])
        first, end = self.numbers_here(np.array([first, end])).tolist()
        part, number = self.part_of(shard)
        if part is not self:
            info = part.shard(number)
            return dataclasses.replace(info, first_record=first, records=end - first)
        size = int(self._shards.file_bytes[shard])
        table = self._table
        columns = {} if table is None else table.columns
        names = ("dropped_records", "added_records")
        dropped, added = (int(columns[n][shard]) if columns else 0 for n in names)
        return ShardInfo(
            path=self._shards.paths[shard],
            first_record=first,
            records=end - first,
            file_bytes=None if size < 0 else size,
            records_digest=None if table is None else table.digest(shard).hex,
            edition=None if (s := self.committed) is None else s.edition_of(shard),
            spans=() if table is None else table.spans(shard),
            dropped_records=dropped,
            added_records=added,
        )

    def part_of(self, shard: int) -> tuple[Dataset, int]:
        """Returns the dataset that has a shard with all records, and its number there.

        It is the one that was joined with others, or that was selected from.
        """
        part, number = self._shards.part_of(shard)
        return self.parts[part], number

    def find(self, records: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """Returns the shard of each record, and its number in the shard.

        Args:
            records: Integers [n], in range.

        Returns:
            int64 [n] shards, int64 [n] numbers.
        """
        checked = checked_indices(records, stop=len(self), what="record")
        return self._shards.find(self._stored(np.atleast_1d(checked)))

    def offset_bytes(self, record: int) -> int:
        """Returns the offset, in its shard, of the chunk that holds a record.

        It opens the shard's index.
        """
        checked = checked_index(record, stop=len(self), what="record")
        (stored,) = self._stored(np.array([checked])).tolist()
        return self._reader.offset_bytes(stored)

    def read(self, records: npt.ArrayLike) -> list[bytes]:
        """Returns records by their numbers, all at once: the fastest way to read many.

        Args:
            records: Integers [n] in [0, len), in any order, repeats included.

        Raises:
            OutOfRangeError: There is no such record.
            CorruptShardError: A shard does not hold what was written.
        """
        checked = checked_indices(records, stop=len(self), what="record")
        if checked.ndim != 1:
            raise InputError(
                "records to read must be a list of numbers",
                expected="one dimension",
                got=f"shape {checked.shape}",
                cure="read(records.ravel()) reads them one after the other",
            )
        return self.read_unchecked(checked, threads=usable_cores())

    def read_unchecked(self, records: IntArray, *, threads: int = 1) -> list[bytes]:
        """As `read`, of int64 [n] numbers that are known to be in range.

        Args:
            records: The numbers.
            threads: Maximum threads that decode. Feeds have threads of their own.
        """
        return self._reader.read(self._stored(records), threads=threads)

    def _stored(self, records: IntArray) -> IntArray:
        """Returns the numbers of records among those of all shards."""
        if (chosen := self._chosen) is None:
            return records
        return chosen.whole._stored(chosen.numbers[records].astype(np.int64))

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> bytes: ...

    @overload
    def __getitem__(
        self, index: slice | Sequence[int] | npt.NDArray[Any]
    ) -> list[bytes]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            chosen = np.arange(*index.indices(len(self)), dtype=np.int64)
            return self.read_unchecked(chosen)
        chosen = counted_from_end(index, stop=len(self), where=self._shards.name)
        records = self.read_unchecked(chosen)
        return records[0] if np.ndim(index) == 0 else records

    def __iter__(self) -> Iterator[bytes]:
        step = 1024
        for begin in range(0, len(self), step):
            yield from self[begin : begin + step]

    def __reduce__(self) -> tuple[Any, ...]:
        if self._chosen is not None:
            return _selected, (*self._chosen,)
        assert self._reopen is not None
        content = self.records_digest, len(self), self.num_shards
        return self._reopen, (content,)


def _selected(whole: Dataset, numbers: npt.NDArray[Any], text: str) -> Dataset:
    return Dataset(
        path=whole.path,
        reader=whole._reader,
        split=whole.split,
        table=whole._table,
        manifest=whole.manifest,
        parts=whole.parts,
        chosen=Chosen(whole, numbers, text),
    )


def numbers_of(dataset: Dataset) -> IntArray:
    """Returns the numbers of a selection's records among those of its shards."""
    return dataset._stored(np.arange(len(dataset)))


def shards_of(dataset: Dataset) -> ShardList:
    """Returns the shards of a dataset, for what opens them."""
    return dataset._shards


def reader_of(dataset: Dataset) -> BatchReader:
    """Returns the reader of a dataset's records."""
    return dataset._reader


def table_of(dataset: Dataset) -> ShardTable | None:
    """Returns the table of the shards of a dataset that is not joined of others."""
    return dataset._table


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
