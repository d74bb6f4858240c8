"""`ReadArrayRecords`: the records of ArrayRecord files, split by ranges of chunks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.paths import StrPath, path_text, path_texts
from gristmill.transforms.beam.display import displayed
from gristmill.transforms.beam.job_metrics import counter
from gristmill.transforms.beam.lineage import report_sources
from gristmill.transforms.beam.pipeline_input import check_begin, check_known, set_types
from gristmill.transforms.beam.record_coder import register
from gristmill.transforms.planning.shard_plan import check_positive
from gristmill.transforms.sources.shards.shard_list import ListedShard, list_shards
from gristmill.transforms.sources.shards.shard_range import (
    ChunkRange,
    cut_at_chunks,
    read_chunks,
)

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


def _list(source: str | Sequence[str], split: str | None) -> Iterator[ListedShard]:
    report_sources((source,) if isinstance(source, str) else source)
    return list_shards(source, split)


def _read(piece: ChunkRange, with_index: bool) -> Iterator[Any]:
    counted = counter("records-read")
    raw_bytes = counter("raw-bytes-read")
    for batch in read_chunks(*piece):
        counted.inc(len(batch.records))
        raw_bytes.inc(sum(map(len, batch.records)))
        if with_index:
            for number, record in zip(batch.places, batch.records, strict=True):
                yield ShardRecord(piece.shard.path, number, record)
        else:
            yield from batch.records


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
        | "CutAtChunks" >> beam.FlatMap(cut_at_chunks, range_bytes)
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
    read ahead from object storage, and the footers and indexes of two shards: some 35
    bytes a record.

    Attributes:
        source: The directory of a dataset; or the path or glob pattern of files, or
            several of them.
        split: The split of a dataset to read, or one edition of it, such as
            `train.e00002`; None for all.
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
        check_known(self)
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
