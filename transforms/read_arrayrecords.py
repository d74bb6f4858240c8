"""`ReadArrayRecords`: the records of ArrayRecord files, split by ranges of chunks.

Records of a dataset are compared with the checksums in its indexes; of other files, the
hashes of their chunks are.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import Footer, read_footer
from gristmill.dataset.arrayrecord.walk import chunk_ranges, walk_chunks
from gristmill.dataset.errors import (
    CorruptShardError,
    InputError,
    StorageError,
    some_of,
)
from gristmill.dataset.file_names import check_joined
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    check_in_place,
    open_manifest,
    read_split_table,
)
from gristmill.dataset.metadata.match_shards import match_shards
from gristmill.dataset.metadata.shard_index import parse_index
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, path_text, path_texts
from gristmill.transforms.graph.applied import check_begin, set_types
from gristmill.transforms.graph.display import displayed
from gristmill.transforms.graph.lineage import report_sources
from gristmill.transforms.graph.record_coder import register
from gristmill.transforms.planning.shard_plan import check_positive

_log = logging.getLogger(__name__)

DEFAULT_RANGE_BYTES = 64 << 20  # 64 MiB


class ShardRecord(NamedTuple):
    """A record and where it comes from.

    Attributes:
        file: The file's path.
        record_index: The record's number in the file, from 0.
        record: The record.
    """

    file: str
    record_index: int
    record: bytes


register(ShardRecord)


class _Shard(NamedTuple):
    path: str
    size_bytes: int
    index_path: str | None  # Its index, if it belongs to a dataset.
    records: int | None  # As the dataset says.
    file_crc32c: int | None = None  # Likewise.


class _ChunkRange(NamedTuple):
    """Chunks [first_chunk, last_chunk) of a shard."""

    shard: _Shard
    first_chunk: int
    last_chunk: int


def list_shards(source: str | Sequence[str], split: str | None) -> Iterator[_Shard]:
    """Yields the shards of a dataset, or the files that patterns match.

    Raises:
        NotADatasetError: A single path is neither a file nor a dataset.
        InputError: A pattern matches nothing or files of several splits, or there is
            no such split.
    """
    if isinstance(source, str) and _is_dataset(source):
        yield from _shards_of_dataset(source, split)
        return
    if split is not None:
        raise InputError(
            "files have no splits",
            where=str(source),
            got=f"split {split}",
            cure="give the directory of a dataset, or leave the split out",
        )
    found: dict[str, int] = {}
    patterns = (source,) if isinstance(source, str) else source
    for pattern in patterns:
        matches = match_shards(pattern)
        if not matches:
            raise InputError(
                "no ArrayRecord file matches", where=pattern, cure="check the path"
            )
        found.update((info.path, info.size_bytes) for info in matches)
    if notice := check_joined(patterns, found):
        _log.warning("%s: %s", source, notice)
    for path in sorted(found):
        yield _Shard(path, found[path], None, None)


def _list(source: str | Sequence[str], split: str | None) -> Iterator[_Shard]:
    report_sources((source,) if isinstance(source, str) else source)
    return list_shards(source, split)


def _is_dataset(source: str) -> bool:
    """Returns whether a source means a dataset, committed or not."""
    storage = storage_for(source)
    if storage.stat(layout.join(source, layout.DATASET_JSON)) is not None:
        return True
    return not glob.has_magic(source) and storage.stat(source) is None


def _shards_of_dataset(dataset: str, split: str | None) -> Iterator[_Shard]:
    manifest = open_manifest(dataset)
    check_in_place(dataset, manifest, None if split is None else [split])
    if split is not None and split not in manifest.splits:
        raise InputError(
            "no such split",
            where=dataset,
            expected=some_of(sorted(manifest.splits), 20),
            got=split,
            cure="give one of these as split, or none to read all",
        )
    for name in sorted(manifest.splits) if split is None else (split,):
        table = read_split_table(dataset, manifest, name)
        for number, path in enumerate(table.paths):
            yield _Shard(
                layout.join(dataset, path),
                int(table.file_bytes[number]),
                layout.join(dataset, layout.index_path(path)),
                int(table.records[number]),
                int(table.file_crc32cs[number]),
            )


def _footer_of(shard: _Shard) -> Footer:
    storage = storage_for(shard.path)
    info = storage.stat(shard.path)
    if info is None or info.size_bytes != shard.size_bytes:
        raise CorruptShardError(
            "shard is missing, or has the wrong size",
            where=shard.path,
            expected=f"{shard.size_bytes:,} bytes",
            got="no file" if info is None else f"{info.size_bytes:,} bytes",
            cure="restore it from a copy, or run the conversion again",
        )
    read = functools.partial(storage.read, shard.path)
    hashed = shard.index_path is None
    footer = read_footer(read, shard.size_bytes, path=shard.path, hashed=hashed)
    if shard.records is not None and footer.records != shard.records:
        raise CorruptShardError(
            "shard is not the one that the dataset describes",
            where=shard.path,
            expected=f"{shard.records:,} records",
            got=f"{footer.records:,}",
            cure="restore it from a copy, or run the conversion again",
        )
    return footer


def _crc32cs_of(shard: _Shard) -> npt.NDArray[np.uint32] | None:
    """Returns uint32 [records] from the shard's index, None if it has none."""
    if shard.index_path is None:
        return None
    try:
        data = storage_for(shard.index_path).read(shard.index_path)
    except StorageError as error:
        raise StorageError(
            "cannot read the index of a shard",
            where=shard.index_path,
            got=error.summary,
            cure="restore it from a copy; gristmill verify lists what is missing",
        ) from error
    index = parse_index(data, path=shard.index_path)
    index.check()
    expected = shard.records, shard.size_bytes, shard.file_crc32c
    found = index.records, index.file_bytes, index.file_crc32c
    if found != expected:
        text = "{:,} records in {:,} bytes with crc32c {:#010x}"
        raise CorruptShardError(
            "shard index is not the one of this shard",
            where=shard.index_path,
            expected=text.format(*expected),
            got=text.format(*found),
            cure="if the dataset was replaced meanwhile, run the pipeline again; "
            "otherwise restore the index from a copy, or run the conversion again",
        )
    return index.crc32cs


def _check(
    shard: _Shard,
    first_record: int,
    records: Sequence[bytes],
    crc32cs: npt.NDArray[np.uint32],
) -> None:
    got = np.array([google_crc32c.value(record) for record in records], np.uint32)
    expected = crc32cs[first_record : first_record + len(records)]
    different = np.flatnonzero(expected != got)
    if len(different):
        at = int(different[0])
        raise CorruptShardError(
            "record is not the one that was written",
            where=f"{shard.path}, record {first_record + at:,}",
            expected=f"crc32c {expected[at]:#010x}, as in the shard's index",
            got=f"{got[at]:#010x}",
            cure="restore the shard from a copy, or run the conversion again; "
            "gristmill verify lists all damage",
        )


def read_chunks(
    shard: _Shard, first_chunk: int, last_chunk: int
) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the records of a run of chunks, with the number of each batch's first.

    Args:
        shard: The file.
        first_chunk: First chunk.
        last_chunk: Chunk after the last.

    Raises:
        CorruptShardError: The shard or its index is damaged.
    """
    footer = _footer_of(shard)
    crc32cs = _crc32cs_of(shard)
    begin, end = footer.chunk_offsets[[first_chunk, last_chunk]].tolist()
    with storage_for(shard.path).open(shard.path, offset=begin, end=end) as file:
        for chunks in walk_chunks(
            file,
            footer,
            path=shard.path,
            first_chunk=first_chunk,
            last_chunk=last_chunk,
        ):
            first_record = chunks.first_record
            for records in chunks.decode(hashed=crc32cs is None):
                if crc32cs is not None:
                    _check(shard, first_record, records, crc32cs)
                yield first_record, records
                first_record += len(records)


def _cut(shard: _Shard, range_bytes: int) -> Iterator[_ChunkRange]:
    for first, last in chunk_ranges(_footer_of(shard), range_bytes=range_bytes):
        yield _ChunkRange(shard, first, last)


def _read(piece: _ChunkRange, with_index: bool) -> Iterator[Any]:
    counted = beam.metrics.Metrics.counter("gristmill", "records-read")
    raw_bytes = beam.metrics.Metrics.counter("gristmill", "raw-bytes-read")
    for first_record, records in read_chunks(*piece):
        counted.inc(len(records))
        raw_bytes.inc(sum(map(len, records)))
        if with_index:
            for number, record in enumerate(records, first_record):
                yield ShardRecord(piece.shard.path, number, record)
        else:
            yield from records


def read_sources(
    sources: beam.PCollection[str | tuple[str, ...]],
    *,
    split: str | None,
    with_index: bool,
    range_bytes: int,
) -> beam.PCollection[Any]:
    """Returns the records of the dataset, or of the files, that each element names."""
    records: beam.PCollection[Any] = (
        sources
        | "ListShards" >> beam.FlatMap(_list, split)
        | "SpreadShards" >> beam.Reshuffle()
        | "CutAtChunks" >> beam.FlatMap(_cut, range_bytes)
        | "SpreadRanges" >> beam.Reshuffle()
        | "ReadChunks"
        >> beam.FlatMap(_read, with_index).with_output_types(
            ShardRecord if with_index else bytes
        )
    )
    return records


@dataclasses.dataclass
class ReadArrayRecords(beam.PTransform[beam.pvalue.PBegin, beam.PCollection[bytes]]):
    """Reads a committed dataset, or ArrayRecord files from anywhere.

    Applied to a pipeline; gives a PCollection of `bytes`, or of `ShardRecord`. What to
    read is looked up when the pipeline runs. Every compression and group size is read;
    files with transposed chunks go through the official reader and must be local.

    Guarantees: bounded; every record exactly once; of a dataset, each record's crc32c
    is compared with the one in the shard's index, of other files the hash of each chunk
    with the one in its header; damage fails the pipeline with file and record or chunk;
    nothing is written, so retries do no harm. The order of a range is
    kept within its bundle, and none beyond that: use `with_index` where it matters.
    Every shard is read by as many workers as it has ranges. Memory per worker: 1 MiB
    of the file (up to 4 MiB decoded), or one chunk if that is larger, 16 MiB that are
    read ahead from object storage, and the shard's footer and index: some 35 bytes a
    record.

    Attributes:
        source: The directory of a dataset; or the path or glob pattern of files, or
            several of them.
        split: The split of a dataset to read; None for all.
        with_index: Whether to give the file and number of each record with it.
        range_bytes: About how many bytes of a file a worker reads.
    """

    source: StrPath | Sequence[StrPath]
    _: dataclasses.KW_ONLY
    split: str | None = None
    with_index: bool = False
    range_bytes: int = DEFAULT_RANGE_BYTES

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: There is nothing to read, or a range would be empty.
        """
        super().__init__()
        set_types(self, gives=ShardRecord if self.with_index else bytes)
        source = self.source
        self._source: str | tuple[str, ...]
        if isinstance(source, (str, os.PathLike)):
            self._source = path_text(source, "dataset or files")
        else:
            self._source = path_texts(source, "file")
        if not self._source:
            raise InputError(
                "no dataset or files given",
                cure="give a dataset's directory, or paths of ArrayRecord files",
            )
        check_positive(range_bytes=self.range_bytes)

    def display_data(self) -> dict[str, Any]:
        """Returns what a runner's page shows."""
        return displayed(
            input=self._source,
            split=self.split,
            range_bytes=self.range_bytes,
            with_index=self.with_index,
        )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(
            begin,
            "ReadArrayRecords",
            "for a PCollection of datasets or patterns, use ReadAllArrayRecords",
        )
        return read_sources(
            begin | "Source" >> beam.Create([self._source]),
            split=self.split,
            with_index=self.with_index,
            range_bytes=self.range_bytes,
        )
