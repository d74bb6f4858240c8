"""`ReadTFRecords`: the records of TFRecord files, large files by ranges.

A range of a file that was entered by searching for a frame can begin inside a record
whose payload holds frames itself, and only the reader of the range before could tell.
A conversion puts that right when it commits; a PCollection cannot be taken back once
its readers have seen it. So here the cuts are exact by construction: a first pass hops
from frame header to frame header through each large file and notes where frames begin
(`sources/frame_walk.py`). It takes parts of 16 ranges, each by itself, and what it
found is joined file by file:

    patterns -> files, in parts -> walk -> group by file -> join: ranges -> read

That pass reads a file of small records once more, without checksumming, copying or
decoding a record; of records larger than some blocks it reads hardly anything.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from gristmill.dataset.base.errors import DataLossError, InputError
from gristmill.dataset.formats.file_names import check_joined
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.paths import StrPath, path_texts
from gristmill.transforms.beam.display import displayed
from gristmill.transforms.beam.job_metrics import counter
from gristmill.transforms.beam.lineage import report_sources
from gristmill.transforms.beam.pipeline_input import check_begin, check_known, set_types
from gristmill.transforms.beam.record_coder import register
from gristmill.transforms.planning.shard_plan import SourceRange, check_positive
from gristmill.transforms.sources.find_inputs import look_into, match_files
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source_of import source_of
from gristmill.transforms.sources.streams.frame_walk import (
    Chain,
    join_walks,
    walk_frames,
)

_log = logging.getLogger(__name__)

DEFAULT_RANGE_BYTES = 64 << 20  # 64 MiB
_PART_RANGES = 16  # A part is walked through in seconds.


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


class _Part(NamedTuple):
    """A part of a file as it was listed; not yet known is how it is compressed."""

    file: FileInfo
    begin_bytes: int
    end_bytes: int


class _Walk(NamedTuple):
    """What was found in a part of an uncompressed file, or in a whole other one."""

    file: InputFile
    begin_bytes: int
    chains: tuple[Chain, ...]


class _FileRange(NamedTuple):
    """A range of a file that begins at a frame, and ends at one or with the file."""

    file: InputFile
    begin_bytes: int
    end_bytes: int  # -1: the end of a compressed file.


def _list_parts(
    patterns: tuple[str, ...], allow_empty_files: bool, part_bytes: int
) -> Iterator[_Part]:
    files = match_files(patterns, allow_empty_files=allow_empty_files)
    report_sources(patterns)
    if notice := check_joined(patterns, [info.path for info in files]):
        _log.warning("%s: %s", patterns[0], notice)
    for info in files:
        # One part, if it cannot be two of that size.
        count = max(info.size_bytes // part_bytes, 1) if part_bytes else 1
        edges = (info.size_bytes * number // count for number in range(count + 1))
        for begin, end in itertools.pairwise(edges):
            yield _Part(info._replace(crc32c=None), begin, end)


def _walk(part: _Part, range_bytes: int) -> Iterator[_Walk]:
    info, begin, end = part
    file = look_into(info)
    if file.compression != "none":
        if not begin:
            yield _Walk(file, 0, ())
        return
    chains = walk_frames(file, begin, end, step_bytes=range_bytes)
    yield _Walk(file, begin, chains)


def _by_file(
    walk: _Walk, at: Any = beam.DoFn.TimestampParam
) -> tuple[bytes, tuple[int, _Walk]]:
    # The time is a part of the key, since a group has one of its own.
    key = f"{at.micros} {walk.file.version} {walk.file.path}"
    return key.encode("utf-8", "surrogateescape"), (at.micros, walk)


def _join(
    group: tuple[bytes, Iterable[tuple[int, _Walk]]],
    range_bytes: int,
    window: Any = beam.DoFn.WindowParam,
) -> Iterator[WindowedValue]:
    times, walks = zip(*group[1], strict=True)
    at = Timestamp(micros=times[0])
    for piece in _cut(walks, range_bytes):
        yield WindowedValue(piece, at, (window,))


def _cut(walks: Sequence[_Walk], range_bytes: int) -> Iterator[_FileRange]:
    """Yields the ranges of one file, as often as it is to be read."""
    # Elements that name the same file have all of its parts each.
    times = sum(walk.begin_bytes == 0 for walk in walks)
    file = walks[0].file
    chains = itertools.chain.from_iterable(walk.chains for walk in walks)
    ranges: Iterable[tuple[int, int]] = [(0, -1)]
    if file.compression == "none":
        ranges = join_walks(file, chains, range_bytes=range_bytes)
    for begin, end in ranges:
        yield from itertools.repeat(_FileRange(file, begin, end), times)


def _read_range(piece: _FileRange, with_source: bool) -> Iterator[Any]:
    file, begin_bytes, end_bytes = piece
    whole = SourceRange(
        file_index=0, begin_bytes=begin_bytes, end_bytes=end_bytes, exact=True
    )
    reader = source_of(file.spec).read(file, whole)
    records = counter("records-read")
    raw_bytes = counter("raw-bytes-read")
    for batch in reader.batches():
        records.inc(len(batch.records))
        raw_bytes.inc(sum(map(len, batch.records)))
        if with_source:
            for offset, record in zip(batch.places, batch.records, strict=True):
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
    # Groups of an unbounded PCollection are never complete: there, a file is one part.
    part_bytes = _PART_RANGES * range_bytes if patterns.is_bounded else 0
    walks: beam.PCollection[Any] = (
        patterns
        | "ListFiles" >> beam.FlatMap(_list_parts, allow_empty_files, part_bytes)
        | "SpreadParts" >> beam.Reshuffle()
        | "WalkFrames" >> beam.FlatMap(_walk, range_bytes)
    )
    ranges: beam.PCollection[Any]
    if part_bytes:
        ranges = (
            walks
            | "ByFile" >> beam.Map(_by_file).with_output_types(tuple[bytes, Any])
            | "GatherFiles" >> beam.GroupByKey()
            | "JoinWalks" >> beam.FlatMap(_join, range_bytes)
        )
    else:
        ranges = walks | "CutFiles" >> beam.FlatMap(
            lambda walk: _cut([walk], range_bytes)
        )
    records: beam.PCollection[Any] = (
        ranges
        | "SpreadRanges" >> beam.Reshuffle()
        | "ReadRanges"
        >> beam.FlatMap(_read_range, with_source).with_output_types(
            SourceRecord if with_source else bytes
        )
    )
    return records


@dataclasses.dataclass
class ReadTFRecords(beam.PTransform[beam.pvalue.PBegin, beam.PCollection[bytes]]):
    """Reads TFRecord files, plain or of gzip, zlib or zstd, as their content tells.

    Applied to a pipeline; gives a PCollection of `bytes`, or of `SourceRecord`. Files
    are listed when the pipeline runs. Damage fails the pipeline with file and offset.

    Guarantees: bounded; every record exactly once, since ranges are cut at frames and
    each is checked to end where the next begins; nothing is written, so retries do no
    harm. The order of a range is kept within its bundle, and none beyond that: use
    `with_source` where it matters. Uncompressed files are read by as many workers as
    they have ranges, compressed ones by one worker each. Memory per element in flight:
    two blocks of 1 MiB, or two records if they are larger; from a bucket also 16 MiB
    that are requested ahead.

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
        check_known(self)
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
