"""The records of an opened dataset, by their numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError, InvalidDatasetError
from gristmill.dataset.base.system import usable_cores
from gristmill.dataset.metadata.features import FeatureSpec, joined_features
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.shard_table import WRITTEN_DIGEST, total_digest
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.loader.base.indices import (
    AnyArray,
    IntArray,
    checked_index,
    checked_indices,
    counted_from_end,
)
from gristmill.loader.data.part import Part
from gristmill.loader.reading.batch_reader import BatchReader
from gristmill.loader.reading.read_plan import Verify
from gristmill.loader.reading.shard_list import ShardList
from gristmill.loader.remote.read_options import (
    NOT_CACHED,
    CacheCounts,
    ReadCounts,
    ReadOptions,
)

if TYPE_CHECKING:
    from gristmill.dataset.columns.column_file import ColumnType
    from gristmill.loader.data.column import Column

_BLOCK_RECORDS = 1 << 16
_BLOCK_BITS = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """What is known of a dataset. What is not known is None.

    Attributes:
        split: The split, None for plain files and joined datasets.
        edition: The newest edition of the split that it holds; None also of a selection
            and of joined datasets.
        records: Number of records.
        shards: Number of shards.
        records_digest: Order-independent digest of all records.
        order_digest: Half a SHA-256 over the number and digest of the records of each
            shard, in order; over file sizes where there are no digests. It changes with
            the division into shards and their order, and not with the order within a
            shard.
        mean_record_bytes: Mean size of the records before compression, selected or not.
        is_packed: Whether the records are packed rows.
        packed: The counts of packed rows; None also for a selection.
        requests: What this process has requested from object storage so far.
        cache: What the local cache of shards did for this process so far.
    """

    split: str | None
    edition: int | None
    records: int
    shards: int
    records_digest: str | None
    order_digest: str
    mean_record_bytes: float | None
    is_packed: bool
    packed: PackedCounts | None
    requests: ReadCounts
    cache: CacheCounts


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
        records_digest: As in `DatasetFacts`.
        order_digest: The same.
    """

    edition: int | tuple[int | None, ...] | None
    records: int
    records_digest: str | None
    order_digest: str

    def is_same(self, other: Content) -> bool:
        """Returns whether the records are the same, in any edition."""
        return self[1:] == other[1:]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HowToRead:
    """The arguments of `open` that all joined datasets share."""

    verify: Verify | None
    read_options: ReadOptions | None
    cache_dir: str | None
    cache_bytes: int | None


class Chosen(NamedTuple):
    """A selection: the whole dataset, the numbers selected, and the condition.

    The numbers are ascending, uint32 or int64 [records], among all of the shards.
    """

    whole: Dataset
    numbers: AnyArray
    text: str

    def digest(self) -> bytes:
        """Returns a SHA-256 over the number of all records and a bit for each."""
        total = len(self.whole)
        hasher = hashlib.sha256(total.to_bytes(8, "little"))
        for begin in range(0, -(-total // 512) * 512, _BLOCK_BITS):
            end = min(begin + _BLOCK_BITS, -(-total // 512) * 512)
            own = slice(*np.searchsorted(self.numbers, [begin, end]))
            bits = np.zeros(end - begin, bool)
            bits[self.numbers[own] - begin] = True
            hasher.update(np.packbits(bits, bitorder="little").tobytes())
        return hasher.digest()


class Stored:
    """The parts and shards of a dataset. Its methods do not check numbers.

    Args:
        parts: The splits that were joined, or the only one.
        how: How they are read.
        reopen: Opens the dataset again, in the given editions if any.
        chosen: Which of the records it has; None for all.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        how: HowToRead,
        reopen: Callable[..., Dataset] | None = None,
        chosen: Chosen | None = None,
    ):
        self.parts, self.how = tuple(parts), how
        self.reopen, self.chosen = reopen, chosen
        self.shards: ShardList = (
            ShardList.joined([part.shards for part in parts])
            if chosen is None
            else chosen.whole.stored.shards
        )
        self._editions: Callable[..., Dataset] | None = None
        known = any(part.edition is not None for part in parts)
        if reopen is not None and known:
            # Callers tend to ask for the same edition repeatedly.
            self._editions = functools.lru_cache(maxsize=4)(reopen)

    def __len__(self) -> int:
        chosen = self.chosen
        return self.shards.records if chosen is None else len(chosen.numbers)

    @functools.cached_property
    def reader(self) -> BatchReader:
        """Reads the records of the shards."""
        verify, options = self.how.verify, self.how.read_options
        return BatchReader(self.shards, verify=verify, read_options=options)

    @property
    def only(self) -> Part | None:
        """The part that has all records; None if several were joined."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def edition(self) -> int | None:
        """The newest edition; None of joined datasets, of a selection, of others."""
        only = None if self.chosen else self.only
        return None if only is None else only.edition

    def as_of(self, edition: int | tuple[int | None, ...]) -> Dataset | None:
        """Returns the dataset as of an edition, None if that is gone.

        For joined datasets, these are the editions of the first of them, where None
        keeps one as it is.
        """
        with contextlib.suppress(InputError):
            return None if self._editions is None else self._editions(edition)
        return None

    def places(self, records: IntArray) -> IntArray:
        """Returns the numbers of records among those of all shards."""
        if self.chosen is None:
            return records
        return self.chosen.numbers[records].astype(np.int64)

    def counts_before(self, places: IntArray) -> IntArray:
        """Returns how many selected records come before each place."""
        if self.chosen is None:
            return places
        numbers = self.chosen.numbers
        return np.searchsorted(numbers, places.astype(numbers.dtype))

    def read(self, records: IntArray, *, threads: int = 1) -> list[bytes]:
        """Returns records by their numbers, in this thread unless told otherwise."""
        return self.reader.read(self.places(records), threads=threads)

    def offset_bytes(self, record: int) -> int:
        """Returns the offset, in its shard, of the chunk that holds a record."""
        return self.reader.offset_bytes(int(self.places(np.array([record]))[0]))

    def part_of(self, shard: int) -> tuple[Part, int]:
        """Returns the part that has a shard, and the shard's number there."""
        part, number = self.shards.part_of(shard)
        return self.parts[part], number

    @functools.cached_property
    def content(self) -> Content:
        """The identity of the records, in their order."""
        if (chosen := self.chosen) is not None:
            whole, digest = chosen.whole.stored.content, chosen.digest()
            names = (f"{whole.records_digest} {whole.order_digest} {n}" for n in (0, 1))
            own = [hashlib.sha256(n.encode() + digest).hexdigest()[:32] for n in names]
            return Content(None, len(self), *own)
        editions = tuple(part.edition for part in self.parts)
        found = self._first_shards(len(self.shards))
        return found._replace(edition=editions if len(editions) > 1 else editions[0])

    def begins_with(self, content: Content) -> bool:
        """Returns whether the first shards have these records, by their digests.

        For a selection, returns whether all of its records are the same.
        """
        if self.chosen is not None:
            return self.content.is_same(content)
        ends = self.shards.ends
        first = int(np.searchsorted(ends, content.records, side="left")) + 1
        last = int(np.searchsorted(ends, content.records, side="right"))
        # More than one where shards are empty.
        counts = range(first, last + 1)
        return any(self._first_shards(count).is_same(content) for count in counts)

    def _first_shards(self, shards: int) -> Content:
        """Returns the identity of the records of the first shards, in their order."""
        firsts = itertools.accumulate(len(part.shards) for part in self.parts[:-1])
        own = zip(self.parts, (-1, *firsts), strict=True)
        tables = [part.table for part, first in own if first < shards]
        known = [table.columns for table in tables if table is not None]
        columns: list[Any] = [np.diff(self.shards.ends[:shards], prepend=0)]
        digest = None
        if len(known) == len(tables):
            every = (
                np.concatenate([one[name] for one in known]) for name in WRITTEN_DIGEST
            )
            written = [column[:shards] for column in every]
            columns += written[2:]
            digest = total_digest(*written).hex
        else:
            sizes = self.shards.starts, self.shards.file_bytes
            columns += [column[:shards] for column in sizes]
        hasher = hashlib.sha256()
        for column in columns:
            hasher.update(column.astype("<u8").tobytes())
        return Content(None, int(columns[0].sum()), digest, hasher.hexdigest()[:32])

    @property
    def packed(self) -> PackedCounts | None:
        """The counts of its packed rows; None for others, or a selection."""
        return None if self.chosen else self._all_packed

    @property
    def is_packed(self) -> bool:
        """Whether the records are packed rows."""
        return self._all_packed is not None

    @functools.cached_property
    def _all_packed(self) -> PackedCounts | None:
        tables = [part.table for part in self.parts]
        totals = [None if table is None else table.packed_total() for table in tables]
        found = [total for total in totals if total is not None]
        return sum(found, PackedCounts()) if len(found) == len(totals) else None


class Dataset(Sequence[bytes]):
    """The records of a dataset, by number. Made by `open`; safe to share among threads.

    `dataset[i]` is a record and counts from the end if negative; `dataset[[i, j, k]]`
    and `dataset[i:j]` are lists of records, read at once. It pickles as what was opened
    and how: a worker process opens it again, and refuses different content.

    Attributes:
        stored: The parts and shards that it is made of. It is internal.
    """

    def __init__(self, stored: Stored):
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    def __repr__(self) -> str:
        name, shards = self.stored.shards.name, len(self.stored.shards)
        if (chosen := self.stored.chosen) is not None:
            counts = f"{len(self):,} of {len(chosen.whole):,} records"
            return f"<Dataset {name}, where {chosen.text}: {counts}>"
        files = "1 shard" if shards == 1 else f"{shards:,} shards"
        return f"<Dataset {name}: {len(self):,} records in {files}>"

    @property
    def path(self) -> str:
        """The directory, or the first of plain files, or of joined datasets."""
        return self.stored.parts[0].path

    @property
    def facts(self) -> DatasetFacts:
        """What is known of it, without opening a shard."""
        stored, shards = self.stored, self.stored.shards
        sizes = [p.table.total("raw_bytes") for p in stored.parts if p.table]
        mean = None
        if len(sizes) == len(stored.parts):
            mean = sum(sizes) / max(shards.records, 1)
        remote = shards.remote
        return DatasetFacts(
            split=None if stored.only is None else stored.only.split,
            edition=stored.edition,
            records=len(self),
            shards=len(shards),
            records_digest=stored.content.records_digest,
            order_digest=stored.content.order_digest,
            mean_record_bytes=mean,
            is_packed=stored.is_packed,
            packed=stored.packed,
            requests=dataclasses.replace(remote.fetcher.counts)
            if remote
            else ReadCounts(),
            cache=remote.counter.counts if remote else NOT_CACHED,
        )

    @property
    def features(self) -> Mapping[str, FeatureSpec] | None:
        """The features of its `tf.train.Example` records, None if not known.

        For a dataset made by TFDS, these are the features of `features.json`, as far as
        one list holds each: not sequences of sequences, video or audio. A feature that
        only some editions or joined datasets have is optional.

        Raises InvalidDatasetError if `dataset.json` describes them in an unknown way.
        """
        if (only := self.stored.only) is not None:
            return only.features
        return joined_features([part.features for part in self.stored.parts])

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        """The types of the columns beside its records, by name.

        Only those that all its editions, and all joined datasets, have alike.
        """
        first, *others = [part.columns for part in self.stored.parts]
        return {
            name: kind
            for name, kind in first.items()
            if all(other.get(name) == kind for other in others)
        }

    def column(self, name: str) -> Column:
        """Returns a column that was attached to the records, as an array.

        Its values are loaded when they are indexed, each compared with its checksum.

        Raises:
            InputError: There is no such column, or not for all records.
            InvalidDatasetError: It was attached to other records, or is damaged.
        """
        from gristmill.loader.data.column import column_of

        chosen = self.stored.chosen
        return column_of(
            name,
            self.stored.parts,
            self.stored.shards.ends,
            known=self.columns,
            where=repr(self),
            numbers=None if chosen is None else chosen.numbers,
        )

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
        chosen, places = self.stored.chosen, self.stored.places(numbers)
        small = self.stored.shards.records < 1 << 32
        places = places.astype(np.uint32 if small else np.int64)
        if chosen is None:
            return _selected(self, places, text)
        return _selected(chosen.whole, places, f"{chosen.text}, where {text}")

    def shard(self, index: int) -> ShardInfo:
        """Returns the facts known about a shard, without opening it.

        Raises:
            OutOfRangeError: There is no such shard.
        """
        shards = self.stored.shards
        shard = checked_index(index, stop=len(shards), what="shard")
        ends = np.array([shards.first_record(shard), int(shards.ends[shard])])
        first, end = self.stored.counts_before(ends).tolist()
        part, number = self.stored.part_of(shard)
        table, split = part.table, part.committed
        columns = {} if table is None else table.columns
        names = ("dropped_records", "added_records")
        dropped, added = (int(columns[n][number]) if columns else 0 for n in names)
        size = int(shards.file_bytes[shard])
        return ShardInfo(
            path=shards.path(shard),
            first_record=first,
            records=end - first,
            file_bytes=None if size < 0 else size,
            records_digest=None if table is None else table.digest(number).hex,
            edition=None if split is None else split.edition_of(number),
            spans=() if table is None else table.spans(number),
            dropped_records=dropped,
            added_records=added,
        )

    def find(self, records: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """Returns the shard of each record, and its number in the shard.

        Args:
            records: Integers [n], in range.

        Returns:
            int64 [n] shards, int64 [n] numbers.
        """
        checked = checked_indices(records, stop=len(self), what="record")
        places = self.stored.places(np.atleast_1d(checked))
        return self.stored.shards.find(places)

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
        return self.stored.read(checked, threads=usable_cores())

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> bytes: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | AnyArray) -> list[bytes]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            chosen = np.arange(*index.indices(len(self)), dtype=np.int64)
            return self.stored.read(chosen)
        chosen = counted_from_end(index, stop=len(self), where=self.stored.shards.name)
        records = self.stored.read(chosen)
        return records[0] if np.ndim(index) == 0 else records

    def __iter__(self) -> Iterator[bytes]:
        step = 1024
        for begin in range(0, len(self), step):
            yield from self[begin : begin + step]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.stored.chosen is not None:
            return _selected, (*self.stored.chosen,)
        return _open_again, (self.stored.reopen, self.stored.content)


def _selected(whole: Dataset, places: AnyArray, text: str) -> Dataset:
    own, chosen = whole.stored, Chosen(whole, places, text)
    return Dataset(Stored(own.parts, own.how, chosen=chosen))


def _open_again(reopen: Callable[..., Dataset], expected: Content) -> Dataset:
    """Opens a dataset again in another process, and refuses other content."""
    dataset = reopen(again=True)
    found = dataset.stored.content
    if not found.is_same(expected):
        raise InvalidDatasetError(
            "dataset was replaced while it was in use",
            where=dataset.stored.shards.name,
            expected=f"{expected.records:,} records, digest {expected.records_digest}",
            got=f"{found.records:,} records, digest {found.records_digest}",
            cure="start again: all processes must open the same dataset",
        )
    return dataset


class GoneDataset(Dataset):
    """The place of a dataset that is gone: it has a length, and reads nothing.

    Args:
        path: Where the dataset was.
        content: What identified the records.
    """

    def __init__(self, path: str, content: Content):
        super().__init__(_Gone(path, content))

    def __reduce__(self) -> tuple[Any, ...]:
        return GoneDataset, (self.path, self.stored.content)

    def __repr__(self) -> str:
        edition = self.stored.content.edition
        which = "" if edition is None else f", edition {edition}"
        return (
            f"<Dataset {self.path}{which}: {len(self):,} records, not there any more>"
        )


class _Gone(Stored):
    def __init__(self, path: str, content: Content):
        none = np.zeros(0, np.int64)
        shards = ShardList(
            starts=none, ends=none, file_records=none, file_bytes=none, name=path
        )
        how = HowToRead(
            verify=None, read_options=None, cache_dir=None, cache_bytes=None
        )
        super().__init__([Part(path=path, shards=shards)], how)
        self.content = content

    def __len__(self) -> int:
        return self.content.records

    @property
    def edition(self) -> int | None:
        edition = self.content.edition
        return edition if isinstance(edition, int) else None

    def begins_with(self, content: Content) -> bool:
        return self.content.is_same(content)

    def places(self, records: IntArray) -> IntArray:
        raise InputError(
            "the records are of an edition that is not there any more",
            where=self.parts[0].path,
            expected="an edition that is kept",
            got=f"edition {self.content.edition}",
            cure="look at later steps; those of this edition cannot be read again",
        )
