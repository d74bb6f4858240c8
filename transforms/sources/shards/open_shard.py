"""ArrayRecord files to read: listed, opened, and read by ranges of records."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import ChunkRange as StoredChunks
from gristmill.dataset.arrayrecord.footer import (
    Footer,
    read_bytes,
    walk_chunks,
)
from gristmill.dataset.base.errors import (
    CorruptRecordError,
    CorruptShardError,
    StorageError,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import (
    ShardFacts,
    check_index,
    check_shard,
    stored_footer,
)
from gristmill.dataset.metadata.shard_index import ShardIndex, parse_index
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.source import SkippedRegions


class ListedShard(NamedTuple):
    """A file to be read.

    Attributes:
        path: Its path.
        size_bytes: Its size.
        dataset_chars: Length of the part of the path that is its dataset's directory,
            slash included; 0 without a dataset.
    """

    path: str
    size_bytes: int
    dataset_chars: int = 0

    @property
    def index_path(self) -> str | None:
        """Its index, if it belongs to a dataset."""
        at = self.dataset_chars
        return self.path[:at] + layout.index_path(self.path[at:]) if at else None


# A range of a file is often followed by the next one of the same file. Each takes about
# 35 bytes a record.
_KEPT_SHARDS = 2

Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenShard:
    """The facts about a file needed before its records are read.

    Attributes:
        shard: The file.
        version: The version to read.
        footer: Its footer.
        crc32cs: uint32 [records], the checksum of each record; None if no index has
            them: then the hashes of the chunks are compared.
        index: Its index, None if it belongs to no dataset.
    """

    shard: ListedShard
    version: str
    footer: Footer
    crc32cs: npt.NDArray[np.uint32] | None
    index: ShardIndex | None = None

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

    def records_before(self, position: int) -> int:
        """Returns the number of records in these chunks."""
        return int(self.first_records[self.chunks_before(position)])

    def chunk_of(self, record: int) -> int:
        """Returns the chunk that holds a record."""
        return int(np.searchsorted(self.first_records, record, side="right")) - 1


def open_shard(
    shard: ListedShard, *, version: str | None = None, rebuild: bool = False
) -> OpenShard:
    """Opens a file: reads its footer and checksums.

    Args:
        shard: The file.
        version: The version that it was listed with; None for any.
        rebuild: Whether the index of a shard stands in for a footer that is damaged, or
            was cut off.

    Raises:
        CorruptShardError: The file is missing, has changed since it was listed, or its
            footer is damaged.
        InvalidDatasetError: Its index is damaged.
        StorageError: Its index cannot be read.
    """
    if version is None:
        info = storage_for(shard.path).stat(shard.path)
        if info is None or info.size_bytes != shard.size_bytes:
            raise CorruptShardError(
                "shard is missing, or has the wrong size",
                where=shard.path,
                expected=f"{shard.size_bytes:,} bytes",
                got="no file" if info is None else f"{info.size_bytes:,} bytes",
                cure="restore it from a copy, or run the conversion again",
            )
        version = info.version
    return kept_shard(shard, version, rebuild)


@functools.lru_cache(maxsize=_KEPT_SHARDS)
def kept_shard(shard: ListedShard, version: str, rebuild: bool) -> OpenShard:
    """Returns an open shard, which stays open for the next ranges of it."""
    # Meanwhile the footer arrives, in two reads.
    coming = daemon_call(
        lambda: _index_of(shard, any_size=rebuild), thread_name="shard-index"
    )
    footer = damage = None
    try:
        footer = _read_footer(shard)
    except CorruptShardError as error:
        damage = error
    index = coming.result()
    if damage is not None:
        if not rebuild or index is None:
            raise damage
        footer = _footer_of_index(index)
    assert footer is not None
    described = ShardFacts(None if index is None else index.records)
    check_shard(described, ShardFacts(footer.records), where=shard.path)
    crc32cs = None if index is None else index.crc32cs
    return OpenShard(
        shard=shard, version=version, footer=footer, crc32cs=crc32cs, index=index
    )


def _read_footer(shard: ListedShard) -> Footer:
    read = functools.partial(
        stored_footer, shard.path, shard.size_bytes, hashed=shard.index_path is None
    )
    try:
        return read()
    except CorruptShardError:
        if not storage_for(shard.path).remote:
            raise
        return read()  # It may have been damaged in transit.


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


def _index_of(shard: ListedShard, *, any_size: bool) -> ShardIndex | None:
    """Returns a shard's index, None if it belongs to no dataset.

    With `any_size`, the shard may have been cut.
    """
    path = shard.index_path
    if path is None:
        return None
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
    check_index(index, ShardFacts(file_bytes=None if any_size else shard.size_bytes))
    # The path identifies it: swapped indexes would swap two shards.
    own = shard.path[shard.dataset_chars :]
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


class ShardRange:
    """Reads records [first, stop) of a shard, in order.

    Memory: 1 MiB of the file (up to 4 MiB decoded), or one chunk if that is larger, and
    the data read ahead from object storage.

    Args:
        opened: The shard.
        first: The first record, the first of a chunk.
        stop: The record after the last.
        skipped: Takes damaged chunks; None makes them errors.
    """

    def __init__(
        self,
        opened: OpenShard,
        first: int,
        stop: int,
        *,
        skipped: SkippedRegions | None = None,
    ):
        self._opened = opened
        self._first, self._stop = first, stop
        self._skipped = skipped

    def open(self, *, wait: bool = True) -> BinaryIO:
        """Opens the file where the first chunk begins."""
        opened, offsets = self._opened, self._opened.footer.chunk_offsets
        return storage_for(opened.shard.path).open(
            opened.shard.path,
            offset=int(offsets[opened.chunk_of(self._first)]),
            end=int(offsets[opened.chunk_of(self._stop - 1) + 1]),
            version=opened.version,
            wait=wait,
        )

    def batches(self, file: BinaryIO | None = None) -> Iterator[RecordBatch]:
        """Yields the good records, about a mebibyte at a time.

        Args:
            file: The result of `open`; by default it is called here.

        Raises:
            CorruptShardError: A chunk is damaged, and there is no `skipped`.
            StorageChangedError: The file was replaced meanwhile.
        """
        if self._first >= self._stop:
            return
        opened = self._opened
        with self.open() if file is None else file as reading:
            for chunks in walk_chunks(
                reading,
                opened.footer,
                path=opened.shard.path,
                first_chunk=opened.chunk_of(self._first),
                last_chunk=opened.chunk_of(self._stop - 1) + 1,
            ):
                yield from map(self._trimmed, self._good(chunks))

    def _trimmed(self, batch: RecordBatch) -> RecordBatch:
        """Returns the records of a batch that are in the range."""
        places = batch.places
        after = max(places[-1] + 1 - self._stop, 0)
        if not after:
            return batch
        chosen = slice(len(places) - after)
        return RecordBatch(places[chosen], batch.records[chosen], batch.crc32cs[chosen])

    def _good(
        self, chunks: StoredChunks, *, again: bool = False
    ) -> Iterator[RecordBatch]:
        """Yields the records of chunks that are not damaged."""
        try:
            yield from self._decoded(chunks)
        except CorruptShardError:
            # It may have been damaged in transit: a bucket gives no checksum for a part
            # of an object. Data that are good the second time are used.
            if not again and storage_for(chunks.path).remote:
                yield from self._good(self._fetched(chunks), again=True)
                return
            if self._skipped is None:
                raise
            for chunk in _one_by_one(chunks):
                try:
                    yield from self._decoded(chunk)
                except CorruptShardError as error:
                    self._skip(self._skipped, chunk, error)

    def _skip(
        self,
        skipped: SkippedRegions,
        chunk: StoredChunks,
        error: CorruptShardError,
    ) -> None:
        first = chunk.first_record
        edges = self._opened.footer.chunk_offsets[[chunk.first_chunk, chunk.last_chunk]]
        begin, end = np.minimum(edges, self._opened.shard.size_bytes).tolist()
        damage = CorruptRecordError(**error.facts())
        damage.reason, damage.detail = "chunk", error.got or error.what
        skipped.add(
            damage,
            chunk.path,
            region=(begin, end),
            rows=(first, first + int(chunk.chunk_records.sum())),
        )

    def _decoded(self, chunks: StoredChunks) -> list[RecordBatch]:
        """Returns all records of chunks; empty if they have none."""
        crc32cs = self._opened.crc32cs
        records = chunks.decode(hashed=crc32cs is None)
        found = list(map(google_crc32c.value, records))
        if crc32cs is not None:
            _check(chunks, found, crc32cs)
        if not records:
            return []
        first = chunks.first_record
        return [RecordBatch(range(first, first + len(records)), records, found)]

    def _fetched(self, chunks: StoredChunks) -> StoredChunks:
        """Returns chunks that were fetched once more."""
        offsets = self._opened.footer.chunk_offsets
        begin, end = offsets[[chunks.first_chunk, chunks.last_chunk]].tolist()
        with storage_for(chunks.path).open(
            chunks.path, offset=begin, end=end, version=self._opened.version
        ) as file:
            data = read_bytes(file, end - begin)
        return dataclasses.replace(chunks, data=data)


def _one_by_one(chunks: StoredChunks) -> Iterator[StoredChunks]:
    """Yields each chunk of a range as its own range."""
    footer = chunks.footer
    offsets = footer.chunk_offsets - footer.chunk_offsets[chunks.first_chunk]
    record = chunks.first_record
    for chunk in range(chunks.first_chunk, chunks.last_chunk):
        data = chunks.data[offsets[chunk] : offsets[chunk + 1]]
        yield dataclasses.replace(
            chunks,
            first_chunk=chunk,
            last_chunk=chunk + 1,
            first_record=record,
            data=data,
        )
        record += int(footer.chunk_records[chunk])


def _check(
    chunks: StoredChunks, found: Sequence[int], crc32cs: npt.NDArray[np.uint32]
) -> None:
    got = np.array(found, np.uint32)
    expected = crc32cs[chunks.first_record : chunks.first_record + len(got)]
    if np.array_equal(expected, got):
        return
    at = int(np.flatnonzero(expected != got)[0])
    raise CorruptShardError(
        "record is not the one that was written",
        where=f"{chunks.path}, record {chunks.first_record + at:,}",
        expected=f"crc32c {expected[at]:#010x}, as in the shard's index",
        got=f"crc32c {got[at]:#010x}",
        cure="restore the shard from a copy, or run the conversion again; "
        "gristmill verify lists all damage",
    )
