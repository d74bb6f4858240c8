"""`ReadTFRecords`, `ReadAllTFRecords`: TFRecord files, large files by ranges.

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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.paths import StrPath, path_text, path_texts
from gristmill.transforms.beam.pipeline_input import check_begin, check_collection
from gristmill.transforms.beam.read_ranges import (
    DEFAULT_RANGE_BYTES,
    Reader,
    read_ranges,
)
from gristmill.transforms.beam.tfrecord_parts import (
    FileWalk,
    by_file,
    cut_walks,
    list_parts,
    walk_part,
)

_PART_RANGES = 16  # A part is walked through in seconds.


def _join(
    group: tuple[bytes, Iterable[tuple[int, FileWalk]]],
    range_bytes: int,
    window: Any = beam.DoFn.WindowParam,
) -> Iterator[WindowedValue]:
    times, walks = zip(*group[1], strict=True)
    at = Timestamp(micros=times[0])
    for piece in cut_walks(walks, range_bytes):
        yield WindowedValue(piece, at, (window,))


def _read_matches(
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
        | "ListFiles" >> beam.FlatMap(list_parts, allow_empty_files, part_bytes)
        | "SpreadParts" >> beam.Reshuffle()
        | "WalkFrames" >> beam.FlatMap(walk_part, range_bytes)
    )
    ranges: beam.PCollection[Any]
    if part_bytes:
        ranges = (
            walks
            | "ByFile" >> beam.Map(by_file).with_output_types(tuple[bytes, Any])
            | "GatherFiles" >> beam.GroupByKey()
            | "JoinWalks" >> beam.FlatMap(_join, range_bytes)
        )
    else:
        ranges = walks | "CutFiles" >> beam.FlatMap(
            lambda walk: cut_walks([walk], range_bytes)
        )
    return read_ranges(ranges, with_source=with_source)


@dataclasses.dataclass
class ReadTFRecords(
    Reader, beam.PTransform[beam.pvalue.PBegin, beam.PCollection[bytes]]
):
    """Reads TFRecord files, plain or compressed with gzip, zlib or zstd.

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
        self._inputs = path_texts(self.patterns, "input")
        self._check(self.with_source)
        if not self._inputs:
            raise InputError(
                "no input files given", cure="give paths or patterns of TFRecord files"
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
        return _read_matches(
            begin | "Patterns" >> beam.Create([self._inputs]),
            with_source=self.with_source,
            range_bytes=self.range_bytes,
            allow_empty_files=self.allow_empty_files,
        )


@dataclasses.dataclass(kw_only=True)
class ReadAllTFRecords(
    Reader, beam.PTransform[beam.PCollection[StrPath], beam.PCollection[bytes]]
):
    """Reads the TFRecord files that a PCollection of paths and patterns names.

    Applied to a PCollection of texts or `pathlib.Path`; gives a PCollection of `bytes`,
    or of `SourceRecord`. Files are read as `ReadTFRecords` reads them.

    Guarantees: those of `ReadTFRecords`, for each element: a file that two elements
    name is read twice. An element that matches nothing fails the pipeline, and so does
    one that matches files of several splits by their names. Records are in the window
    of their element.

    Attributes:
        with_source: Whether to give the file and offset of each record with it.
        range_bytes: Least bytes that a worker reads of a file that is split.
        allow_empty_files: Whether a file of 0 bytes is one without records, and not an
            interrupted copy.
    """

    with_source: bool = False
    range_bytes: int = DEFAULT_RANGE_BYTES
    allow_empty_files: bool = False

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: A range would be empty.
        """
        super().__init__()
        self._check(self.with_source)

    def expand(self, patterns: beam.PCollection[StrPath]) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is not applied to a PCollection.
        """
        check_collection(patterns, "ReadAllTFRecords", "patterns")
        return _read_matches(
            patterns | "Patterns" >> beam.Map(lambda path: (path_text(path, "input"),)),
            with_source=self.with_source,
            range_bytes=self.range_bytes,
            allow_empty_files=self.allow_empty_files,
        )
