"""The shards that are open: their bytes and indexes.

The index of a shard is a file, or is made of its footer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
from collections.abc import Iterator

from gristmill.dataset.arrayrecord.footer import Footer, read_footer
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
from gristmill.dataset.storage.local import OpenFile
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.reading.host_cache import FooterCache


@dataclasses.dataclass(frozen=True)
class StoredBytes:
    """The bytes of an object.

    Attributes:
        path: The object.
        size_bytes: Its size.
        stamp: Its generation.
    """

    path: str
    size_bytes: int
    stamp: str

    def __getitem__(self, range_bytes: slice) -> bytes:
        """Reads the bytes of a range."""
        storage = storage_for(self.path)
        return storage.read(self.path, range_bytes.start, range_bytes.stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardFile:
    """An open shard.

    Attributes:
        path: The shard.
        data: Its bytes.
        index: Where its records are.
    """

    path: str
    data: OpenFile | StoredBytes
    index: ShardIndex

    @property
    def version(self) -> str | None:
        """The generation to read, of a shard in object storage; None for a file."""
        return self.data.stamp if isinstance(self.data, StoredBytes) else None

    @functools.cached_property
    def has_crc32cs(self) -> bool:
        """Whether the index has a checksum of every record."""
        return len(self.index.crc32cs) == self.index.records


def open_shard(
    path: str,
    *,
    index_path: str | None = None,
    footers: FooterCache | None = None,
) -> ShardFile:
    """Opens a shard.

    By default the index is the file that a conversion puts beside the shard; if there
    is none, it is made from the shard's footer, and kept in `footers`. A shard that
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
    return ShardFile(path=path, data=file, index=index)


def _open_bytes(path: str) -> OpenFile | StoredBytes:
    if "://" in path:
        info = storage_for(path).stat(path)
        if info is None:
            raise StorageError("no such shard", where=path, cure="check the path")
        return StoredBytes(path, info.size_bytes, info.version)
    with _disk_errors(path):
        return OpenFile(path)


def _found_index(path: str) -> str | None:
    """Returns where a conversion puts the index of a shard, if there is a file."""
    directory, _, name = path.rpartition("/")
    index_path = layout.index_path(name)
    if directory or path.startswith("/"):
        index_path = f"{directory}/{index_path}"
    return None if storage_for(index_path).stat(index_path) is None else index_path


def _footer_index(
    path: str, file: OpenFile | StoredBytes, footers: FooterCache | None
) -> ShardIndex:
    def read() -> Footer:
        return read_footer(
            lambda begin, end: file[begin:end], file.size_bytes, path=path
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
                "check the path and its permissions; `gristmill verify --quick` names "
                "all that is lost: restore it from a copy, or run the same conversion "
                "again, which makes missing shards"
            )
        raise StorageError(
            "cannot open a file of the dataset",
            where=path,
            got=os.strerror(e.errno),
            cure=cure,
        ) from e
