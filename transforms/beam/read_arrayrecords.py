"""`ReadArrayRecords`, `ReadAllArrayRecords`: ArrayRecord files, by ranges of chunks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.paths import StrPath, path_text, path_texts
from gristmill.transforms.beam.job_metrics import report_sources
from gristmill.transforms.beam.pipeline_input import check_begin, check_collection
from gristmill.transforms.beam.read_ranges import (
    DEFAULT_RANGE_BYTES,
    Reader,
    read_ranges,
)
from gristmill.transforms.sources.shards.shard_list import ListedShard, list_shards
from gristmill.transforms.sources.shards.shard_range import cut_at_chunks


def _list(source: Sequence[str], split: str | None) -> Iterator[ListedShard]:
    report_sources(source)
    return list_shards(source, split)


def _read_sources(
    sources: beam.PCollection[tuple[str, ...]],
    *,
    split: str | None,
    with_index: bool,
    range_bytes: int,
) -> beam.PCollection[Any]:
    """Returns the records of the dataset, or of the files, that each element names."""
    ranges = (
        sources
        | "ListShards" >> beam.FlatMap(_list, split)
        | "SpreadShards" >> beam.Reshuffle()
        | "CutAtChunks" >> beam.FlatMap(cut_at_chunks, range_bytes)
    )
    return read_ranges(ranges, with_source=with_index)


@dataclasses.dataclass
class ReadArrayRecords(
    Reader, beam.PTransform[beam.pvalue.PBegin, beam.PCollection[bytes]]
):
    """Reads a committed dataset, or ArrayRecord files from anywhere.

    Applied to a pipeline; gives a PCollection of `bytes`, or of `SourceRecord`. What to
    read is looked up when the pipeline runs. Every compression and group size is read;
    files with transposed chunks are refused.

    Guarantees: bounded; every record exactly once; in a dataset, each record's crc32c
    is compared with the one in the shard's index, in other files the hash of each chunk
    with the one in its header; damage fails the pipeline with file and record or chunk;
    nothing is written, so retries do no harm. The order of a range is kept within its
    bundle, and none beyond that: use `with_index` where it matters. Every shard is read
    by as many workers as it has ranges. Memory per worker: 1 MiB of the file (up to 4
    MiB decoded), or one chunk if that is larger, 16 MiB that are read ahead from object
    storage, and the footers and indexes of two shards: some 35 bytes a record.

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
        source = self.source
        if isinstance(source, (str, os.PathLike)):
            self._inputs = path_texts(source, "dataset or files")
        else:
            self._inputs = path_texts(source, "file")
        if not any(self._inputs):
            raise InputError(
                "no dataset or files given",
                cure="give a dataset's directory, or paths of ArrayRecord files",
            )
        self._check(self.with_index)

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
        return _read_sources(
            begin | "Source" >> beam.Create([self._inputs]),
            split=self.split,
            with_index=self.with_index,
            range_bytes=self.range_bytes,
        )


@dataclasses.dataclass(kw_only=True)
class ReadAllArrayRecords(
    Reader, beam.PTransform[beam.PCollection[StrPath], beam.PCollection[bytes]]
):
    """Reads the datasets or ArrayRecord files that a PCollection names.

    Applied to a PCollection of texts or `pathlib.Path`: directories of datasets, paths
    or patterns of files. Gives a PCollection of `bytes`, or of `SourceRecord`. They are
    read as `ReadArrayRecords` reads them.

    Guarantees: those of `ReadArrayRecords`, for each element: a file that two elements
    name is read twice. An element that matches nothing fails the pipeline, and so does
    one that matches files of several splits by their names. Records are in the window
    of their element.

    Attributes:
        split: The split to read of each; then all elements must be datasets.
        with_index: Whether to give the file and number of each record with it.
        range_bytes: About how many bytes of a file a worker reads.
    """

    split: str | None = None
    with_index: bool = False
    range_bytes: int = DEFAULT_RANGE_BYTES

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: A range would be empty.
        """
        super().__init__()
        self._check(self.with_index)

    def expand(self, sources: beam.PCollection[StrPath]) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is not applied to a PCollection.
        """
        check_collection(sources, "ReadAllArrayRecords", "datasets or patterns")
        return _read_sources(
            sources
            | "Sources"
            >> beam.Map(lambda path: (path_text(path, "dataset or files"),)),
            split=self.split,
            with_index=self.with_index,
            range_bytes=self.range_bytes,
        )
