"""ArrayRecord files to read: listed and opened."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.base.errors import CorruptShardError, StorageError
from gristmill.dataset.base.places import Int64, Places
from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import (
    ShardFacts,
    check_index,
    check_shard,
    stored_footer,
)
from gristmill.dataset.metadata.shard_index import ShardIndex, parse_index
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.input_files import InputFile

# A range of a file is often followed by the next one of the same file. Each takes about
# 35 bytes a record.
_KEPT_SHARDS = 2


@dataclasses.dataclass(frozen=True)
class OpenShard:
    """The facts about a file needed before its records are read.

    Attributes:
        file: The file, in the version to read.
        footer: Its footer.
        index: Its index, None if it belongs to no dataset.
    """

    file: InputFile
    footer: Footer
    index: ShardIndex | None = None

    @property
    def crc32cs(self) -> npt.NDArray[np.uint32] | None:
        """uint32 [records], the checksum of each record.

        None if no index has them: then the hashes of the chunks are compared.
        """
        return None if self.index is None else self.index.crc32cs

    @functools.cached_property
    def places(self) -> Places | None:
        """The sources of its records, None if its index does not have them."""
        return None if self.index is None else self.index.places()

    @functools.cached_property
    def first_records(self) -> Int64:
        """int64 [chunks + 1], the number of each chunk's first record, and of all."""
        return np.append(0, np.cumsum(self.footer.chunk_records))

    @property
    def records(self) -> int:
        """Number of records in the file."""
        return int(self.first_records[-1])

    def chunks_before(self, position: int) -> int:
        """Returns the number of chunks that begin before a byte of the file."""
        begins = self.footer.chunk_offsets[:-1]
        return int(np.searchsorted(begins, position, side="left"))


def open_shard(
    file: InputFile, dataset_chars: int, *, rebuild: bool = False
) -> OpenShard:
    """Opens a file: reads its footer and checksums.

    Args:
        file: The file.
        dataset_chars: Length of the part of its path that is its dataset's directory,
            slash included; 0 without a dataset.
        rebuild: Whether the index of a shard stands in for a footer that is damaged, or
            was cut off.

    Raises:
        CorruptShardError: The file is missing, has changed since it was listed, or its
            footer is damaged.
        InvalidDatasetError: Its index is damaged.
        StorageError: Its index cannot be read.
    """
    if file.version is None:
        info = storage_for(file.path).stat(file.path)
        if info is None or info.size_bytes != file.size_bytes:
            raise CorruptShardError(
                "shard is missing, or has the wrong size",
                where=file.path,
                expected=f"{file.size_bytes:,} bytes",
                got="no file" if info is None else f"{info.size_bytes:,} bytes",
                cure="restore it from a copy, or run the conversion again",
            )
        file = file._replace(version=info.version)
    return kept_shard(file, dataset_chars, rebuild)


@functools.lru_cache(maxsize=_KEPT_SHARDS)
def kept_shard(file: InputFile, dataset_chars: int, rebuild: bool) -> OpenShard:
    """Returns an open shard, which stays open for the next ranges of it."""
    # Meanwhile the footer arrives, in two reads.
    coming = daemon_call(
        lambda: _index_of(file, dataset_chars, any_size=rebuild),
        thread_name="shard-index",
    )
    footer = damage = None
    try:
        footer = _read_footer(file, hashed=not dataset_chars)
    except CorruptShardError as error:
        damage = error
    index = coming.result()
    if damage is not None:
        if not rebuild or index is None:
            raise damage
        footer = _footer_of_index(index)
    assert footer is not None
    described = ShardFacts(None if index is None else index.records)
    check_shard(described, ShardFacts(footer.records), where=file.path)
    return OpenShard(file, footer, index)


def _read_footer(file: InputFile, *, hashed: bool) -> Footer:
    try:
        return stored_footer(file.path, file.size_bytes, hashed=hashed)
    except CorruptShardError:
        if not file.remote:
            raise
        # It may have been damaged in transit.
        return stored_footer(file.path, file.size_bytes, hashed=hashed)


def _footer_of_index(index: ShardIndex) -> Footer:
    """Returns the footer of a shard, with the fields that its index has."""
    chunks = np.arange(index.chunks + 1, dtype=np.int64)
    return Footer(
        chunk_offsets=index.chunk_offsets(chunks),
        chunk_records=index.chunk_records(chunks[:-1]),
        # The maximum for each chunk suffices to read one at a time.
        chunk_decoded_bytes=np.full(
            index.chunks, index.max_chunk_decoded_bytes, np.int64
        ),
        writer_options="",
    )


def _index_of(
    file: InputFile, dataset_chars: int, *, any_size: bool
) -> ShardIndex | None:
    """Returns a shard's index, None if it belongs to no dataset.

    With `any_size`, the shard may have been cut.
    """
    if not dataset_chars:
        return None
    own = file.path[dataset_chars:]
    path = file.path[:dataset_chars] + layout.index_path(own)
    try:
        data = storage_for(path).read(path)
    except StorageError as error:
        raise StorageError(
            "cannot read the index of a shard",
            where=path,
            got=error.summary,
            cure="restore it from a copy; gristmill verify lists what is missing. To "
            "read the shards without their indexes, give them by a pattern",
        ) from error
    index = parse_index(data, path=path)
    index.check()
    check_index(index, ShardFacts(file_bytes=None if any_size else file.size_bytes))
    # The path identifies it: swapped indexes would swap two shards.
    if (named := index.report().path) != own:
        raise CorruptShardError(
            "shard index is that of another shard",
            where=path,
            expected=own,
            got=named,
            cure="give shards and indexes the names that they had, or restore them "
            "from a copy",
        )
    return index
