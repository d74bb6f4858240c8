"""Open shards: memory maps of a shard and its index, each opened when first needed.

A local file is mapped, so that readers of one machine share it and a record that is
not needed is not read. Of a shard in object storage only the index is here, and which
version of the shard is meant.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import mmap
import os
import resource
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from gristmill.dataset.arrayrecord.footer import (
    BLOCK_BYTES,
    Footer,
    logical,
    read_footer,
)
from gristmill.dataset.errors import CorruptShardError, StorageError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import (
    ShardIndex,
    index_of_footer,
    map_index,
    parse_index,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.cache.footers import FooterCache
from gristmill.loader.indices import IntArray
from gristmill.loader.reading.remote_shards import RemoteShards

# Descriptors that are left to everybody else in the process.
_SPARE_FILES = 256
# Linux allows a process 65,530 maps; a shard takes two.
_MOST_OPEN_SHARDS = 24_000
# Most shards that a reader has in use at a time, besides those that are kept open.
MOST_HELD_SHARDS = 4_000
# The type of a chunk is in its header at this offset.
CHUNK_TYPE_AT = 24


class Bytes(Protocol):
    """A file's bytes, by half-open ranges."""

    def __getitem__(self, range_bytes: slice, /) -> bytes | memoryview:
        """Returns the bytes of a range."""


class _StoredBytes:
    """A file that cannot be mapped."""

    def __init__(self, path: str):
        self._path = path

    def __getitem__(self, range_bytes: slice) -> bytes:
        storage = storage_for(self._path)
        return storage.read(self._path, range_bytes.start, range_bytes.stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardFile:
    """An open shard.

    Attributes:
        path: The shard.
        data: Its bytes.
        index: Where its records are.
        transposed: Whether only the official reader can decode it. Of a shard in
            object storage that nobody has touched, its chunks tell.
        version: The generation that is meant, of a shard in object storage; None for
            a local file.
        number: Which of the dataset's it is, of a shard in object storage or a copy
            of one; None for others.
    """

    path: str
    data: Bytes
    index: ShardIndex
    transposed: bool
    version: str | None = None
    number: int | None = None

    @property
    def has_crc32cs(self) -> bool:
        """Whether the index has a checksum of every record."""
        return len(self.index.crc32cs) == self.index.records

    def logical(self, begin: int, end: int) -> bytes | memoryview:
        """Returns the bytes of a half-open physical range without block headers."""
        return without_block_headers(self.data[begin:end], begin)


def without_block_headers(data: bytes | memoryview, begin: int) -> bytes | memoryview:
    """Returns physical bytes that begin at an offset without the headers of blocks."""
    if (begin - 1) // BLOCK_BYTES != (begin + len(data) - 1) // BLOCK_BYTES:
        return logical(data, begin)
    return data


def open_shard(
    path: str,
    *,
    index_path: str | None = None,
    footers: FooterCache | None = None,
) -> ShardFile:
    """Opens a shard.

    Args:
        path: The shard.
        index_path: Its index. By default the one that a conversion would have put
            beside the shard if it is there, else one made of the shard's footer.
        footers: Has those, or keeps them.

    Raises:
        CorruptShardError: The shard is truncated or damaged, or not the one that was
            indexed.
        InvalidDatasetError: The index is damaged.
        StorageError: A file is not there or cannot be read.
    """
    size, data, version, stamp = _open_bytes(path)
    if index_path is None:
        directory, _, name = path.rpartition("/")
        index_path = layout.index_path(name)
        if directory or path.startswith("/"):
            index_path = f"{directory}/{index_path}"
        if storage_for(index_path).stat(index_path) is None:
            index_path = None
    if index_path is None:

        def read() -> Footer:
            return read_footer(lambda begin, end: data[begin:end], size, path=path)

        if footers is None:
            index = index_of_footer(read(), path=path, file_bytes=size)
        else:
            index = footers.index(path, file_bytes=size, stamp=stamp, read=read)
    elif "://" in index_path:
        index = parse_index(storage_for(index_path).read(index_path), path=index_path)
    else:
        with _explained(index_path):
            index = map_index(index_path)
    if index.file_bytes != size:
        raise CorruptShardError(
            "shard does not have the size that its index says",
            where=path,
            expected=f"{index.file_bytes:,} bytes, as {index.path} says",
            got=f"{size:,} bytes",
            cure="a shard that was cut short: restore it from a copy, or convert it "
            "again; one that was written again: `gristmill index` it again",
        )
    shard = ShardFile(
        path=path, data=data, index=index, transposed=False, version=version
    )
    return dataclasses.replace(shard, transposed=_is_transposed(shard))


def _open_bytes(path: str) -> tuple[int, Bytes, str | None, str]:
    """Returns size, bytes, the version of an object, and what tells versions apart."""
    if "://" in path:
        info = storage_for(path).stat(path)
        if info is None:
            raise StorageError("no such shard", where=path, cure="check the path")
        return info.size_bytes, _StoredBytes(path), info.version, info.version
    with _explained(path), open(path, "rb") as file:
        about = os.fstat(file.fileno())
        size, stamp = about.st_size, f"{about.st_mtime_ns} {about.st_ctime_ns}"
        if not size:  # An empty file cannot be mapped.
            return 0, b"", None, stamp
        # A view of it, which can be sliced without a copy.
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return size, data, None, stamp


@contextlib.contextmanager
def _explained(path: str) -> Any:
    try:
        yield
    except OSError as e:
        if isinstance(e, StorageError) or e.errno is None:
            raise
        raise StorageError(
            "cannot open a file of the dataset",
            where=path,
            got=os.strerror(e.errno),
            cure="restore the file from a copy, or check the path and its permissions",
        ) from e


def _is_transposed(shard: ShardFile) -> bool:
    """Looks at the first chunk: a writer transposes all chunks of a file or none."""
    if not shard.index.chunks or not shard.index.records:
        return False
    begin, end = shard.index.chunk_offsets(np.array([0, 1])).tolist()
    header = shard.logical(begin, min(end, begin + BLOCK_BYTES))
    return header[CHUNK_TYPE_AT : CHUNK_TYPE_AT + 1] == b"t"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardList:
    """Which records of which files make a dataset, in order. Arrays are [shards].

    Attributes:
        paths: The files.
        index_paths: Their indexes, or None for what `open_shard` finds.
        starts: First record of each file that is part of the dataset.
        ends: One past the last record of each file, in the numbering of the dataset.
        file_records: Records in each file, -1 where nobody has counted them.
        file_bytes: Size of each file, -1 where nobody has looked.
        name: The dataset, for messages.
        remote: What opens the shards of a dataset in object storage.
        footers: Has the indexes of plain files.
    """

    paths: Sequence[str]
    index_paths: Sequence[str] | None
    starts: IntArray
    ends: IntArray
    file_records: IntArray
    file_bytes: IntArray
    name: str
    remote: RemoteShards | None = None
    footers: FooterCache | None = None

    @property
    def records(self) -> int:
        """Number of records in the dataset."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def first_record(self, shard: int) -> int:
        """Returns the number, in the dataset, of the first record of a shard."""
        return int(self.ends[shard - 1]) if shard else 0

    def find(self, records: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the shard of each record, and its number in the shard's file.

        Args:
            records: int64 [n], all in range.

        Returns:
            int64 [n] shards, int64 [n] records in the files.
        """
        shards = np.searchsorted(self.ends, records, side="right")
        before = np.where(shards > 0, self.ends[shards - 1], 0)
        return shards, records - before + self.starts[shards]

    def find_one(self, record: int) -> tuple[int, int]:
        """Returns the shard of one record, and its number in the shard's file."""
        # Not by numpy: it lets other threads in first, for an answer of a few steps.
        shard = bisect.bisect_right(self.ends.data, record)
        return shard, record - self.first_record(shard) + int(self.starts[shard])

    def open(
        self, shards: Sequence[int], records: Sequence[IntArray] = ()
    ) -> list[ShardFile]:
        """Opens shards and compares each with what the dataset says of it.

        Args:
            shards: Numbers of shards.
            records: Of each shard, the records in it that are wanted: where indexes
                are too large to be kept, only these can be found.

        Raises:
            CorruptShardError: One is another one.
        """
        if self.remote is None:
            opened = [
                open_shard(
                    self.paths[shard],
                    index_path=None
                    if self.index_paths is None
                    else self.index_paths[shard],
                    footers=self.footers,
                )
                for shard in shards
            ]
        else:
            indexes = self.remote.indexes(shards, records)
            opened = [
                self.copy(shard, index) or self._stored(shard, index)
                for shard, index in zip(shards, indexes, strict=True)
            ]
        for shard, file in zip(shards, opened, strict=True):
            self._compare(shard, file)
        return opened

    def copy(self, shard: int, index: ShardIndex) -> ShardFile | None:
        """Returns the local copy of a shard in object storage, if there is one."""
        cache = None if self.remote is None else self.remote.cache
        data = None if cache is None else cache.find(shard)
        if data is None:
            return None
        path = self.paths[shard]
        return ShardFile(
            path=path, data=data, index=index, transposed=False, number=shard
        )

    def _stored(self, shard: int, index: ShardIndex) -> ShardFile:
        assert self.remote is not None
        return ShardFile(
            path=self.paths[shard],
            data=_StoredBytes(self.paths[shard]),
            index=index,
            transposed=False,
            version=self.remote.version(shard),
            number=shard,
        )

    def _compare(self, shard: int, opened: ShardFile) -> None:
        records, size = int(self.file_records[shard]), int(self.file_bytes[shard])
        taken = int(self.ends[shard]) - self.first_record(shard)
        end = int(self.starts[shard]) + taken
        if (
            records not in (-1, opened.index.records)
            or size not in (-1, opened.index.file_bytes)
            or end > opened.index.records
        ):
            raise CorruptShardError(
                "shard is not the one that the dataset describes",
                where=f"{self.name}, shard {opened.path}",
                expected=f"{records if records >= 0 else end:,} records"
                + (f", {size:,} bytes" if size >= 0 else ""),
                got=f"{opened.index.records:,} records, "
                f"{opened.index.file_bytes:,} bytes",
                cure="restore the shard and its index from a copy, or convert this "
                "shard again",
            )


class OpenShards:
    """The shards that are open, of those that a list has. Safe to share by threads."""

    def __init__(self, shards: ShardList):
        self._shards = shards
        self._open: dict[int, ShardFile] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @functools.cached_property
    def most(self) -> int:
        """How many are kept open, and how many more a reader may hold."""
        return most_open(len(self._shards.paths))

    def get(self, shard: int) -> ShardFile:
        """Returns a shard, opened."""
        found = self._open.get(shard)
        if found is not None:
            return found
        (opened,) = self._shards.open([shard])
        self._keep({shard: opened})
        return opened

    def get_many(
        self, shards: Sequence[int], records: Sequence[IntArray]
    ) -> dict[int, ShardFile]:
        """Returns shards, those opened together that are not open yet.

        Args:
            shards: Numbers of shards.
            records: Of each shard, the records in it that are wanted.
        """
        remote = self._shards.remote
        if remote is not None and not remote.keeps_indexes:
            return dict(zip(shards, self._shards.open(shards, records), strict=True))
        found = {shard: self._open.get(shard) for shard in shards}
        missing = [shard for shard, file in found.items() if file is None]
        opened = dict(zip(missing, self._shards.open(missing), strict=True))
        for shard, file in found.items():
            if file is not None and file.version is not None:
                # There may be a copy by now.
                copy = self._shards.copy(shard, file.index)
                if copy is not None:
                    found[shard] = opened[shard] = copy
        self._keep(opened)
        return {shard: file or opened[shard] for shard, file in found.items()}

    def _keep(self, opened: dict[int, ShardFile]) -> None:
        with self._lock:
            for shard, file in opened.items():
                while len(self._open) >= self.most:
                    # The one opened first: in random order it is as good as any.
                    # Readers that still use it keep its maps.
                    del self._open[next(iter(self._open))]
                self._open[shard] = file

    def without_copy(self, shard: int, records: IntArray) -> ShardFile:
        """Deletes the local copy of a shard in object storage; returns the shard."""
        remote = self._shards.remote
        if remote is not None and remote.cache is not None:
            remote.cache.forget(shard)
        with self._lock:
            self._open.pop(shard, None)
        return self.get_many([shard], [records])[shard]

    def add(self, shard: int, opened: ShardFile) -> None:
        """Keeps a shard that was opened already, one of `most_open`."""
        with self._lock:
            self._open[shard] = opened

    def close(self) -> None:
        """Lets go of all shards. What is read next is opened again."""
        with self._lock:
            self._open.clear()


def most_open(shards: int) -> int:
    """Returns how many shards may be open, and lets the process have that many.

    A map keeps a descriptor of its file. The usual soft limit of 1,024 stands for
    programs that use select(); to open and close files at every batch would cost more
    than to decode them, so it is raised as far as needed and allowed.
    """
    wanted = min(shards, _MOST_OPEN_SHARDS)
    held = min(shards - wanted, MOST_HELD_SHARDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max(wanted, 1)
    needed = 2 * (wanted + held) + _SPARE_FILES
    if needed > soft:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # Then it stays as it is.
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, soft), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = (soft - min(_SPARE_FILES, soft // 2)) // 2
    # Where that is not enough for all, a reader holds as many as are kept.
    return wanted if room >= wanted + held else max(1, room // 2)
