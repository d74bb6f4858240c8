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
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam

from gristmill.dataset.errors import DataLossError, InputError
from gristmill.dataset.file_names import check_joined
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, path_texts
from gristmill.dataset.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    U64,
    is_header,
)
from gristmill.transforms.graph.applied import check_begin, set_types
from gristmill.transforms.graph.display import displayed
from gristmill.transforms.graph.lineage import report_sources
from gristmill.transforms.graph.record_coder import register
from gristmill.transforms.planning.shard_plan import SourceRange, check_positive
from gristmill.transforms.sources.input_files import InputFile, find_inputs
from gristmill.transforms.sources.tfrecord_range import RangeReader

_log = logging.getLogger(__name__)

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


register(SourceRecord)


class _FileRange(NamedTuple):
    """A range of a file that begins at a frame, and ends at one or with the file."""

    file: InputFile
    begin_bytes: int
    end_bytes: int  # -1: the end of a compressed file.


def _list_files(
    patterns: tuple[str, ...], allow_empty_files: bool
) -> Iterator[InputFile]:
    files = find_inputs(patterns, allow_empty_files=allow_empty_files)
    report_sources(patterns)
    if notice := check_joined(patterns, files.paths):
        _log.warning("%s: %s", patterns[0], notice)
    yield from map(files.__getitem__, range(len(files)))


def _cut(file: InputFile, range_bytes: int) -> Iterator[_FileRange]:
    if file.compression != "none":
        yield _FileRange(file, 0, -1)
        return
    read = functools.partial(storage_for(file.path).read, file.path)
    for begin, end in frame_ranges(read, file.size_bytes, range_bytes=range_bytes):
        yield _FileRange(file, begin, end)


def frame_ranges(
    read: Callable[[int, int], bytes],
    size_bytes: int,
    *,
    range_bytes: int,
    block_bytes: int = 8 << 20,
) -> Iterator[tuple[int, int]]:
    """Yields ranges of an uncompressed file that begin and end at frames.

    The cutting stops at a damaged header: the reader of the last range finds the same
    damage and reports it.

    Args:
        read: Returns the bytes [begin, end) of the file.
        size_bytes: The size of the file.
        range_bytes: Least bytes of a range, the last one aside.
        block_bytes: How much is read at once.

    Yields:
        Half-open ranges that cover the file exactly, in order.
    """
    begin = position = 0
    block, block_begin = b"", 0
    # With no more than one range left, there is nothing to cut.
    while size_bytes - begin > range_bytes and position < size_bytes:
        at = position - block_begin
        if at + HEADER_BYTES > len(block):
            end = min(position + block_bytes, size_bytes)
            block, block_begin, at = read(position, end), position, 0
        if not is_header(block[at : at + HEADER_BYTES]):
            break
        if position - begin >= range_bytes:
            yield begin, position
            begin = position
        position += U64.unpack_from(block, at)[0] + FRAME_OVERHEAD_BYTES
    yield begin, size_bytes


def _read_range(piece: _FileRange, with_source: bool) -> Iterator[Any]:
    file, begin_bytes, end_bytes = piece
    whole = SourceRange(
        file_index=0, begin_bytes=begin_bytes, end_bytes=end_bytes, exact=True
    )
    reader = RangeReader(file, whole)
    records = beam.metrics.Metrics.counter("gristmill", "records-read")
    raw_bytes = beam.metrics.Metrics.counter("gristmill", "raw-bytes-read")
    for batch in reader.batches():
        records.inc(len(batch.records))
        raw_bytes.inc(sum(map(len, batch.records)))
        if with_source:
            for offset, record in zip(batch.offsets, batch.records, strict=True):
                yield SourceRecord(file.path, offset, record)
        else:
            yield from batch.records
    stop = reader.span.stop_bytes
    if file.compression == "none" and file.size_bytes and stop != end_bytes:
        raise DataLossError(
            "two ranges of an input file do not meet",
            where=f"{file.path}, range from byte offset {begin_bytes:,}",
            expected=f"a range that ends at byte offset {end_bytes:,}",
            got=f"{stop}",
            cure="do not write to the file while it is read, then run again",
        )


def read_matches(
    patterns: beam.PCollection[tuple[str, ...]],
    *,
    with_source: bool,
    range_bytes: int,
    allow_empty_files: bool,
) -> beam.PCollection[Any]:
    """Returns the records of the files that each element's patterns match together."""
    records: beam.PCollection[Any] = (
        patterns
        | "ListFiles" >> beam.FlatMap(_list_files, allow_empty_files)
        | "SpreadFiles" >> beam.Reshuffle()
        | "CutAtFrames" >> beam.FlatMap(_cut, range_bytes)
        | "SpreadRanges" >> beam.Reshuffle()
        | "ReadRanges"
        >> beam.FlatMap(_read_range, with_source).with_output_types(
            SourceRecord if with_source else bytes
        )
    )
    return records


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

    patterns: StrPath | Sequence[StrPath]
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
        set_types(self, gives=SourceRecord if self.with_source else bytes)
        self._patterns = path_texts(self.patterns, "input")
        if not self._patterns:
            raise InputError(
                "no input files given", cure="give paths or patterns of TFRecord files"
            )
        check_positive(range_bytes=self.range_bytes)

    def display_data(self) -> dict[str, Any]:
        """Returns what a runner's page shows."""
        return displayed(
            input=self._patterns,
            range_bytes=self.range_bytes,
            with_source=self.with_source,
        )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(
            begin,
            "ReadTFRecords",
            "for a PCollection of patterns, use ReadAllTFRecords",
        )
        return read_matches(
            begin | "Patterns" >> beam.Create([self._patterns]),
            with_source=self.with_source,
            range_bytes=self.range_bytes,
            allow_empty_files=self.allow_empty_files,
        )
