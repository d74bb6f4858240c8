"""Opening a dataset: constant work, however many shards and records it has.

A committed dataset is opened by `dataset.json` and the table of shards; a TFDS
directory by `dataset_info.json`. Plain ArrayRecord files have no such table: their
footers are read once, in parallel.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from gristmill.dataset import layout
from gristmill.dataset.errors import (
    InputError,
    InvalidDatasetError,
    NotADatasetError,
    StorageError,
)
from gristmill.dataset.manifest import (
    Manifest,
    open_manifest,
    read_manifest,
    read_table,
)
from gristmill.dataset.shard_report import SourceSpan
from gristmill.dataset.shard_table import ShardTable
from gristmill.dataset.storage import storage_for
from gristmill.loader.batch_read import BatchReader, Verify
from gristmill.loader.cache_counts import NOT_CACHED, CacheCounts
from gristmill.loader.count_files import CountedFile, count_files
from gristmill.loader.footer_cache import footer_cache
from gristmill.loader.index_arrays import IntArray, OutOfRangeError, checked_indices
from gristmill.loader.range_fetch import ReadOptions
from gristmill.loader.remote_shards import RemoteShards
from gristmill.loader.shard_cache import (
    ShardCache,
    no_shards_to_cache,
    shard_cache,
)
from gristmill.loader.shard_files import ShardList
from gristmill.loader.tfds_files import read_tfds_files

_log = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?\[]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One shard of a dataset.

    Attributes:
        path: The file.
        first_record: Number, in the dataset, of its first record.
        records: How many records it has.
        file_bytes: Size of the file, None where nobody has looked.
        records_digest: Order-independent digest of its records, where known.
        spans: The ranges of source TFRecord files it was made of, where known.
        dropped_records: Source records of which the user's function made none.
        added_records: Records that it made beyond one for each.
    """

    path: str
    first_record: int
    records: int
    file_bytes: int | None
    records_digest: str | None
    spans: tuple[SourceSpan, ...]
    dropped_records: int
    added_records: int


class _Under(Sequence[str]):
    """Paths in a directory, joined when one is asked for: there may be a million."""

    def __init__(self, directory: str, paths: Sequence[str], *, of_indexes: bool):
        self._directory, self._paths, self._of_indexes = directory, paths, of_indexes

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        path = self._paths[index]
        if self._of_indexes:
            path = layout.index_path(path)
        return layout.join(self._directory, path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How a dataset is read, as `open` was told."""

    verify: Verify | None
    options: ReadOptions | None
    cache_dir: str | None
    cache_bytes: int | None = None


class Dataset(Sequence[bytes]):
    """The records of a dataset, by number. Made by `open`; safe to share by threads.

    `dataset[i]` is a record and counts from the end if negative; `dataset[[i, j, k]]`
    and `dataset[i:j]` are lists of records, read at once. It pickles as what was
    opened and how: a worker process opens it again, and refuses another content.
    """

    def __init__(
        self,
        *,
        path: str,
        split: str | None,
        shards: ShardList,
        table: ShardTable | None,
        manifest: Manifest | None,
        how: Reading,
        files: tuple[str, ...] | None = None,
    ):
        self._path, self._split, self._how = path, split, how
        self._shards, self._table, self._manifest = shards, table, manifest
        self._files = files
        self._reader = BatchReader(shards, verify=how.verify, read_options=how.options)

    def __len__(self) -> int:
        return self._shards.records

    def __repr__(self) -> str:
        return (
            f"<Dataset {self._shards.name}: {len(self):,} records in "
            f"{self.num_shards:,} shards>"
        )

    @property
    def path(self) -> str:
        """The directory, or the first of plain files."""
        return self._path

    @property
    def split(self) -> str | None:
        """The split, None for plain files."""
        return self._split

    @property
    def manifest(self) -> Manifest | None:
        """What `dataset.json` says, None where there is none."""
        return self._manifest

    @property
    def read_options(self) -> ReadOptions | None:
        """How object storage is read, None for a dataset on a local disk."""
        remote = self._shards.remote
        return None if remote is None else remote.fetcher.options

    @property
    def cache_counts(self) -> CacheCounts:
        """What the local cache of shards did for this process; all 0 without one."""
        remote = self._shards.remote
        return NOT_CACHED if remote is None else remote.meter.counts

    def take_cache_counts(self) -> CacheCounts:
        """Returns what was added to `cache_counts` since this was called before."""
        remote = self._shards.remote
        return NOT_CACHED if remote is None else remote.meter.take()

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self._shards.paths)

    @property
    def records_digest(self) -> str | None:
        """Order-independent digest of all records, None where nobody has made it."""
        return None if self._table is None else self._table.digest().hex

    @functools.cached_property
    def order_digest(self) -> str:
        """Half a SHA-256 over what is known of the records of each shard, in order.

        That is how many there are, with their digest, or else with the size of the
        file. It differs where records are stored in another order, unless that is
        within a shard; it also differs where they are parted into other shards.
        """
        hasher = hashlib.sha256()
        columns = [np.diff(self._shards.ends, prepend=0)]
        if self._table is None:
            columns += [self._shards.starts, self._shards.file_bytes]
        else:
            columns += [self._table.columns[f"digest_{end}"] for end in ("low", "high")]
        for column in columns:
            hasher.update(column.astype("<u8").tobytes())
        return hasher.hexdigest()[:32]

    def shard(self, index: int) -> ShardInfo:
        """Returns what is known of a shard, without opening it.

        Raises:
            OutOfRangeError: There is no such shard.
        """
        (shard,) = checked_indices([index], stop=self.num_shards, what="shard").tolist()
        first = self._shards.first_record(shard)
        size = int(self._shards.file_bytes[shard])
        table = self._table
        columns = {} if table is None else table.columns
        dropped, added = (
            int(columns[name][shard]) if columns else 0
            for name in ("dropped_records", "added_records")
        )
        return ShardInfo(
            path=self._shards.paths[shard],
            first_record=first,
            records=int(self._shards.ends[shard]) - first,
            file_bytes=None if size < 0 else size,
            records_digest=None if table is None else table.digest(shard).hex,
            spans=() if table is None else table.spans(shard),
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
        return self._shards.find(checked)

    def offset_bytes(self, record: int) -> int:
        """Returns the offset, in its shard, of the chunk that holds a record.

        It opens the shard's index.
        """
        (checked,) = checked_indices([record], stop=len(self), what="record").tolist()
        return self._reader.offset_bytes(checked)

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
        return self._reader.read(checked.astype(np.int64, copy=False))

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> bytes: ...

    @overload
    def __getitem__(
        self, index: slice | Sequence[int] | npt.NDArray[Any]
    ) -> list[bytes]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._reader.read(
                np.arange(*index.indices(len(self)), dtype=np.int64)
            )
        records = self._reader.read(self._from_end(index))
        return records[0] if np.ndim(index) == 0 else records

    def __iter__(self) -> Iterator[bytes]:
        step = 1024
        for begin in range(0, len(self), step):
            yield from self[begin : begin + step]

    def _from_end(self, index: Any) -> IntArray:
        array = np.atleast_1d(np.asarray(index))
        count = len(self)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InputError(
                "not a number of a record, nor a list of numbers",
                expected="integers",
                got=f"{array.dtype} of shape {array.shape}",
            )
        if array.size and not (-count <= int(array.min()) and int(array.max()) < count):
            outside = (array < -count) | (array > count - 1)
            raise OutOfRangeError(
                "record is out of range",
                where=self._shards.name,
                expected=f"{-count} <= record < {count}",
                got=int(array[np.argmax(outside)]),
            )
        array = array.astype(np.int64)
        return np.where(array < 0, array + count, array)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._files is not None:
            # The counts come along, so that a worker reads no footer it does not need.
            return _open_counted, (self._shards, self._files, self._how)
        lasting = self.records_digest, len(self), self.num_shards
        return _reopen, (self._path, self._split, self._how, lasting)


def open(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    split: str | None = None,
    *,
    verify: Verify | None = None,
    read_options: ReadOptions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> Dataset:
    """Opens a dataset for reading.

    Args:
        path: The directory of a committed dataset, or of a TFDS dataset in ArrayRecord
            format; or an ArrayRecord file, a glob pattern, or a list of these.
        split: The split of a directory; it may be left out where there is one only.
        verify: `always` compares every record with its crc32c and refuses shards that
            have none, `never` saves the time. By default records are compared where
            there are checksums: in what gristmill has converted or indexed.
        read_options: How to read object storage, as in gs:// paths.
        cache_dir: Local directory for what is fetched once per host: indexes of
            datasets in object storage, and those made of the footers of plain files;
            "" keeps nothing of the latter. By default `GRISTMILL_CACHE_DIR`, or one
            of this user's under `TMPDIR`.
        cache_bytes: Of a dataset in object storage, keep copies of whole shards there
            too: most bytes of all copies, of all datasets and processes. They are
            made while records are read.

    Raises:
        NotADatasetError: There is nothing, or nothing finished.
        InputError: The split is not there, or must be said; or there can be no cache.
        InvalidDatasetError: What the dataset says of itself does not add up.
        StorageError: The directory for copies cannot be used.
    """
    how = Reading(
        verify=verify,
        options=read_options,
        cache_dir=_given(cache_dir),
        cache_bytes=cache_bytes,
    )
    if isinstance(path, (str, os.PathLike)):
        place = os.fspath(path)
        manifest = read_manifest(place)
        if manifest is not None:
            return _open_committed(place, split, how, manifest, again=False)
        if cache_bytes is not None:
            raise no_shards_to_cache(place)
        if not _MAGIC.search(place) and not storage_for(place).match(place):
            return _open_tfds(place, split, how)
        patterns: tuple[str, ...] = (place,)
    else:
        patterns = tuple(os.fspath(item) for item in path)
        if cache_bytes is not None:
            raise no_shards_to_cache(", ".join(patterns))
    if split is not None:
        raise InputError(
            "plain files have no splits",
            got=f"split {split!r}",
            cure="leave the split out, or give the dataset's directory",
        )
    return _open_files(patterns, how)


def _given(directory: str | os.PathLike[str] | None) -> str | None:
    return None if directory is None else os.fspath(directory)


def _choose(split: str | None, splits: Sequence[str], where: str) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split is None or split not in splits:
        raise InputError(
            "no split given" if split is None else "no such split",
            where=where,
            expected=f"one of {', '.join(splits)}" if splits else "(there is none)",
            got=split,
            cure="say which split to open",
        )
    return split


def _open_tfds(path: str, split: str | None, how: Reading) -> Dataset:
    found = read_tfds_files(path)
    if found is None:
        open_manifest(path)  # Says what is missing.
        raise InvalidDatasetError(
            "dataset was written this moment", where=path, cure="open it again"
        )
    name, splits = found
    own = _choose(split, tuple(splits), path)
    files = splits[own]
    counts = np.array(files.file_records, np.int64)
    shards = ShardList(
        paths=_Under(path, files.paths, of_indexes=False),
        index_paths=None,
        starts=np.zeros_like(counts),
        ends=_checked_ends(counts, path),
        file_records=counts,
        file_bytes=np.full_like(counts, -1),
        name=f"{path} ({name}, split {own})",
        footers=footer_cache(how.cache_dir),
    )
    return Dataset(
        path=path, split=own, shards=shards, table=None, manifest=None, how=how
    )


def _open_committed(
    path: str, split: str | None, how: Reading, manifest: Manifest, *, again: bool
) -> Dataset:
    own = _choose(split, tuple(manifest.splits), path)
    table = read_table(path, manifest.splits[own])
    table.check_paths(where=layout.join(path, manifest.splits[own].table))
    paths = _Under(path, table.paths, of_indexes=False)
    index_paths = _Under(path, table.paths, of_indexes=True)
    remote = None
    if "://" not in path and how.cache_bytes is not None:
        raise no_shards_to_cache(path)
    if "://" in path:
        remote = RemoteShards(
            paths=paths,
            index_paths=index_paths,
            table=table,
            options=how.options or ReadOptions(),
            cache_dir=how.cache_dir,
            cache=_shard_cache(path, how, table, again=again),
        )
    shards = ShardList(
        paths=paths,
        index_paths=index_paths,
        starts=np.zeros(len(table), np.int64),
        ends=_checked_ends(table.records, path),
        file_records=table.records,
        file_bytes=table.file_bytes,
        name=f"{path}, split {own}",
        remote=remote,
    )
    return Dataset(
        path=path, split=own, shards=shards, table=table, manifest=manifest, how=how
    )


def _shard_cache(
    path: str, how: Reading, table: ShardTable, *, again: bool
) -> ShardCache | None:
    try:
        return shard_cache(
            table, where=path, cache_dir=how.cache_dir, cache_bytes=how.cache_bytes
        )
    except StorageError as e:
        if not again:
            raise
        # In a worker, perhaps in the middle of training, which goes on without.
        _log.warning("%s is read without local copies of shards: %s", path, e)
        return None


def _checked_ends(counts: IntArray, where: str) -> IntArray:
    if float(counts.sum(dtype=float)) > 2**62:
        raise InvalidDatasetError(
            "dataset claims more than 2^62 records",
            where=where,
            cure="restore it from a copy, or convert it again",
        )
    ends: IntArray = np.cumsum(counts, dtype=np.int64)
    return ends


def _open_files(patterns: tuple[str, ...], how: Reading) -> Dataset:
    paths: list[str] = []
    for pattern in patterns:
        found = [info.path for info in storage_for(pattern).match(pattern)]
        if not found:
            raise NotADatasetError(
                "no such file",
                where=pattern,
                cure="check the path or pattern",
            )
        paths += found
    if not paths:
        raise NotADatasetError(
            "no files given", cure="give paths or patterns of ArrayRecord files"
        )
    footers = footer_cache(how.cache_dir)
    counted = count_files(paths, footers=footers)
    counts = np.array([count.records for count in counted], np.int64)
    shards = ShardList(
        paths=paths,
        index_paths=None,
        starts=np.zeros_like(counts),
        ends=_checked_ends(counts, paths[0]),
        file_records=counts,
        file_bytes=np.array([count.file_bytes for count in counted], np.int64),
        name=patterns[0] if len(patterns) == 1 else f"{paths[0]} and others",
        footers=footers,
    )
    return _open_counted(shards, patterns, how, counted)


def _open_counted(
    shards: ShardList,
    patterns: tuple[str, ...],
    how: Reading,
    counted: Sequence[CountedFile] = (),
) -> Dataset:
    dataset = Dataset(
        path=shards.paths[0],
        split=None,
        shards=shards,
        table=None,
        manifest=None,
        how=how,
        files=patterns,
    )
    for number, count in enumerate(counted):
        if count.opened is not None:
            dataset._reader.open_shards.add(number, count.opened)
    return dataset


def _reopen(path: str, split: str, how: Reading, lasting: tuple[Any, ...]) -> Dataset:
    manifest = read_manifest(path)
    if manifest is None:
        dataset = _open_tfds(path, split, how)
    else:
        dataset = _open_committed(path, split, how, manifest, again=True)
    found = dataset.records_digest, len(dataset), dataset.num_shards
    if found != lasting:
        raise InvalidDatasetError(
            "dataset was replaced while it was in use",
            where=f"{path}, split {split}",
            expected="digest {}, {:,} records, {:,} shards".format(*lasting),
            got="digest {}, {:,} records, {:,} shards".format(*found),
            cure="start again, on one of the two",
        )
    return dataset
