"""`ReadTFRecords`: the records of TFRecord files, large files by ranges.

A range of a file that was entered by searching for a frame can begin inside a record
whose payload holds frames itself, and only the reader of the range before could tell.
A conversion puts that right when it commits; a PCollection cannot be taken back once
its readers have seen it. So here the cuts are exact by construction: a first pass hops
from frame header to frame header through each large file and notes where frames begin.
That pass reads a file of small records once more, without checksumming, copying or
decoding a record (2 GB/s from a local disk); of records larger than a block it
reads hardly anything.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam

from gristmill.dataset.errors import DataLossError, InputError
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.tfrecord.frames import Compression
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.frame_ranges import frame_ranges
from gristmill.transforms.sources.input_files import find_inputs
from gristmill.transforms.sources.tfrecord_range import RangeReader

DEFAULT_RANGE_BYTES = 64 << 20  # 64 MiB


class SourceRecord(NamedTuple):
    """A record and where it comes from.

    Attributes:
        file: The file's path.
        offset: Where its frame begins, in the decompressed file.
        record: The record.
    """

    file: str
    offset: int
    record: bytes


class _File(NamedTuple):
    path: str
    size_bytes: int
    version: str
    compression: Compression


class _FileRange(NamedTuple):
    """A range of a file that begins at a frame, and ends at one or with the file."""

    file: _File
    begin_bytes: int
    end_bytes: int  # -1: the end of a compressed file.


class _ListFilesFn(beam.DoFn):
    def __init__(self, *, allow_empty_files: bool):
        self._allow_empty_files = allow_empty_files

    def process(self, patterns: tuple[str, ...]) -> Iterator[_File]:
        files = find_inputs(patterns, allow_empty_files=self._allow_empty_files)
        for number, path in enumerate(files.paths):
            yield _File(
                path,
                int(files.sizes[number]),
                files.versions[number],
                files.compression(number),
            )


class _CutFn(beam.DoFn):
    def __init__(self, range_bytes: int):
        self._range_bytes = range_bytes

    def process(self, file: _File) -> Iterator[_FileRange]:
        if file.compression != "none":
            yield _FileRange(file, 0, -1)
            return
        read = functools.partial(storage_for(file.path).read, file.path)
        for begin, end in frame_ranges(
            read, file.size_bytes, range_bytes=self._range_bytes
        ):
            yield _FileRange(file, begin, end)


class _ReadRangeFn(beam.DoFn):
    def __init__(self, *, with_source: bool):
        self._with_source = with_source

    def process(self, piece: _FileRange) -> Iterator[bytes | SourceRecord]:
        file = piece.file
        reader = RangeReader(
            file.path,
            SourceRange(
                file_index=0,
                begin_bytes=piece.begin_bytes,
                end_bytes=piece.end_bytes,
                exact=True,
            ),
            compression=file.compression,
            size_bytes=file.size_bytes,
            version=file.version,
        )
        records = beam.metrics.Metrics.counter("gristmill", "records-read")
        raw_bytes = beam.metrics.Metrics.counter("gristmill", "raw-bytes-read")
        for batch in reader.batches():
            records.inc(len(batch.records))
            raw_bytes.inc(sum(map(len, batch.records)))
            if self._with_source:
                for offset, record in zip(batch.offsets, batch.records, strict=True):
                    yield SourceRecord(file.path, offset, record)
            else:
                yield from batch.records
        stop = reader.span.stop_bytes
        if file.compression == "none" and file.size_bytes and stop != piece.end_bytes:
            raise DataLossError(
                "two ranges of an input file do not meet",
                where=f"{file.path}, range from byte offset {piece.begin_bytes:,}",
                expected=f"a range that ends at byte offset {piece.end_bytes:,}",
                got=f"{stop}",
                cure="do not write to the file while it is read, then run again",
            )


@dataclasses.dataclass
class ReadTFRecords(beam.PTransform[beam.pvalue.PBegin, beam.PCollection[bytes]]):
    """Reads TFRecord files, uncompressed, gzip or zlib, told apart by their content.

    Applied to a pipeline; gives a PCollection of `bytes`, or of `SourceRecord`. Files
    are listed when the pipeline runs. Damage fails the pipeline with file and offset.

    Guarantees: bounded; every record exactly once, since ranges are cut at frames and
    each is checked to end where the next begins; nothing is written, so retries do no
    harm. The order of a range is kept within its bundle, and none beyond that: use
    `with_source` where it matters. Uncompressed files are read by as many workers as
    they have ranges, compressed ones by one worker each. Memory per worker: one block
    of 4 MiB (8 MiB while cutting), or one record if that is larger.

    Attributes:
        patterns: A path or glob pattern, or several.
        with_source: Whether to give the file and offset of each record with it.
        range_bytes: Least bytes that a worker reads of a file that is split.
        allow_empty_files: Whether a file of 0 bytes is one without records, and not an
            interrupted copy.
    """

    patterns: str | Sequence[str]
    _: dataclasses.KW_ONLY
    with_source: bool = False
    range_bytes: int = DEFAULT_RANGE_BYTES
    allow_empty_files: bool = False

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: There is no pattern, or a range would be empty.
        """
        super().__init__()
        if not self.patterns:
            raise InputError(
                "no input files given", cure="give paths or patterns of TFRecord files"
            )
        if self.range_bytes < 1:
            raise InputError(
                "range_bytes must be positive",
                got=self.range_bytes,
                cure="give 1 or more, or leave range_bytes out",
            )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[bytes]:
        """Builds the chain."""
        patterns = self.patterns
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        list_files = _ListFilesFn(allow_empty_files=self.allow_empty_files)
        records: beam.PCollection[bytes] = (
            begin
            | "Patterns" >> beam.Create([patterns])
            | "ListFiles" >> beam.ParDo(list_files)
            | "SpreadFiles" >> beam.Reshuffle()
            | "CutAtFrames" >> beam.ParDo(_CutFn(self.range_bytes))
            | "SpreadRanges" >> beam.Reshuffle()
            | "ReadRanges"
            >> beam.ParDo(_ReadRangeFn(with_source=self.with_source)).with_output_types(
                SourceRecord if self.with_source else bytes
            )
        )
        return records
