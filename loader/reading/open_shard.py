"""A shard opened with its index, or with one made from its footer."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from gristmill.dataset.arrayrecord.footer import BLOCK_BYTES, Footer, read_footer
from gristmill.dataset.base.errors import (
    CorruptShardError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import (
    ShardIndex,
    index_of_footer,
    map_index,
    parse_index,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.open_file import OpenFile
from gristmill.loader.reading.shard_file import (
    Bytes,
    ShardFile,
    StoredBytes,
    is_transposed,
)


class FooterIndexes(Protocol):
    """What keeps the indexes made of footers: `cache.footers.FooterCache`."""

    def index(
        self, path: str, *, file_bytes: int, stamp: str, read: Callable[[], Footer]
    ) -> ShardIndex:
        """Returns the index of a file."""


def open_shard(
    path: str,
    *,
    index_path: str | None = None,
    footers: FooterIndexes | None = None,
) -> ShardFile:
    """Opens a shard.

    By default the index is the file where a conversion would have put it, if there is
    one, and otherwise made of the shard's footer; `footers` keeps these. A shard that
    is damaged, or not the one that was indexed, is a CorruptShardError.
    """
    file = _open_bytes(path)
    if index_path is None:
        index_path = _found_index(path)
    if index_path is None:
        index = _footer_index(path, file, footers)
    elif "://" in index_path:
        index = parse_index(storage_for(index_path).read(index_path), path=index_path)
    else:
        with _disk_errors(index_path):
            index = map_index(index_path)
    if index.file_bytes != file.size_bytes:
        raise CorruptShardError(
            "shard does not have the size that its index says",
            where=path,
            expected=f"{index.file_bytes:,} bytes, as {index.path} says",
            got=f"{file.size_bytes:,} bytes",
            cure="if the shard was truncated, restore it from a copy or convert it "
            "again; if it was written again, `gristmill index` it again",
        )
    return ShardFile(
        path=path,
        data=file.data,
        index=index,
        transposed=_is_transposed(file.data, index),
        version=file.version,
    )


def check_index(index: ShardIndex, file_crc32c: int) -> None:
    """Raises CorruptShardError if an index is not of the shard with this checksum."""
    got = index.file_crc32c
    if got != file_crc32c:
        raise CorruptShardError(
            "index is not the one of its shard",
            where=index.path,
            expected=f"of a shard with crc32c {file_crc32c:#010x}",
            got=f"of one with {got:#010x}",
            cure="restore the index from a copy, or convert this shard again",
        )


class _Opened(NamedTuple):
    size_bytes: int
    data: Bytes
    version: str | None  # The generation of an object, None for a local file.
    stamp: str  # Differs after the file was written again.


def _open_bytes(path: str) -> _Opened:
    if "://" in path:
        info = storage_for(path).stat(path)
        if info is None:
            raise StorageError("no such shard", where=path, cure="check the path")
        version = info.version
        return _Opened(info.size_bytes, StoredBytes(path), version, version)
    with _disk_errors(path):
        file = OpenFile(path)
    return _Opened(file.size_bytes, file, None, file.stamp)


def _found_index(path: str) -> str | None:
    """Returns the path of a shard's index, if there is such a file."""
    directory, _, name = path.rpartition("/")
    index_path = layout.index_path(name)
    if directory or path.startswith("/"):
        index_path = f"{directory}/{index_path}"
    return None if storage_for(index_path).stat(index_path) is None else index_path


def _footer_index(
    path: str, file: _Opened, footers: FooterIndexes | None
) -> ShardIndex:
    def read() -> Footer:
        return read_footer(
            lambda begin, end: file.data[begin:end], file.size_bytes, path=path
        )

    if footers is None:
        return index_of_footer(read(), path=path, file_bytes=file.size_bytes)
    return footers.index(path, file_bytes=file.size_bytes, stamp=file.stamp, read=read)


@contextlib.contextmanager
def _disk_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if isinstance(e, StorageError) or e.errno is None:
            raise
        if e.errno == errno.EISDIR:
            cure = "give the files in it, or open a dataset's directory by loader.open"
        else:
            cure = SystemLimitError.CURES.get(e.errno) or (
                "restore the file from a copy, or check the path and its permissions"
            )
        raise StorageError(
            "cannot open a file of the dataset",
            where=path,
            got=os.strerror(e.errno),
            cure=cure,
        ) from e


def _is_transposed(data: Bytes, index: ShardIndex) -> bool:
    # The first chunk tells: a writer transposes all chunks of a file or none.
    if not index.chunks or not index.records:
        return False
    begin, end = index.chunk_offsets(np.array([0, 1])).tolist()
    if not 0 < begin < end <= index.file_bytes:
        return False  # Whoever reads a record is told that the index is damaged.
    return is_transposed(data[begin : min(end, begin + BLOCK_BYTES)], begin)
