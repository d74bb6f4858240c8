"""From the inputs of a reader to its records: listing, examining, cutting, reading.

A range of a TFRecord file whose start was found by searching for a frame can begin
inside a record whose payload holds frames, and only the reader of the range before
could detect that. A conversion detects it before the commit, but the elements of a
PCollection cannot be withdrawn. Therefore the cuts are exact by construction: a first
pass hops from frame header to frame header and notes where frames begin
(`sources/tfrecord.py`). It takes parts of 16 ranges independently, and joins the
results file by file. It reads files of small records once more, without checking or
decoding a record, and hardly anything of large records.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import logging
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import DataLossError, InputError, some_of
from gristmill.dataset.formats.file_formats import check_joined
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import chosen_split
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import has_file
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.run_job import counter, report_sources
from gristmill.transforms.directories.hugging_face_directory import (
    is_repository,
    repository_inputs,
)
from gristmill.transforms.directories.tfds_directory import read_tfds_directory
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.find_inputs import (
    LookTask,
    find_inputs,
    look_into,
    look_tasks,
    looked_files,
    match_files,
)
from gristmill.transforms.sources.formats import FORMATS, RecordOptions, check_options
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.shards.source_split import list_shards
from gristmill.transforms.sources.source import ReadRequest, source_of
from gristmill.transforms.sources.tfrecord import (
    Chain,
    join_walks,
    walk_frames,
)

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Listing:
    """How the inputs of a reader are listed.

    Attributes:
        split: The split of a directory to read; None for all.
        records: The format of the inputs, and the records to make of them.
        allow_empty_files: Whether to accept a file of 0 bytes as one without records.
        part_bytes: Minimum size of a part of a TFRecord file; 0 for whole files.
    """

    split: str | None
    records: RecordOptions
    allow_empty_files: bool
    part_bytes: int

    @property
    def needs_looks(self) -> bool:
        """Whether making records needs facts from all files together."""
        return self.records.input_format not in ("arrayrecord", "tfrecord")

    @property
    def may_walk(self) -> bool:
        """Whether TFRecord files may be cut into parts."""
        known = self.records.input_format in ("auto", "tfrecord")
        return known and self.part_bytes > 0


class FilePart(NamedTuple):
    """A part of a TFRecord file that was listed or examined."""

    file: FileInfo | InputFile
    begin_bytes: int
    end_bytes: int


class FileWalk(NamedTuple):
    """The frames found in a part of a plain file, or a whole compressed file."""

    file: InputFile
    begin_bytes: int
    chains: tuple[Chain, ...]


Part = FilePart | InputFile


def _groups(
    inputs: tuple[str, ...], how: Listing
) -> Mapping[str, tuple[str, ...]] | None:
    """Returns the patterns to list together, by split; None for a dataset."""
    directory = inputs[0].rstrip("/") or "/"
    if len(inputs) == 1 and has_file(directory, layout.DATASET_JSON):
        return None
    if how.records.input_format == "arrayrecord":
        return None
    if len(inputs) == 1 and is_repository(directory):
        asked = None if how.split is None else (how.split,)
        return repository_inputs(directory, splits=asked)
    if len(inputs) == 1 and has_file(directory, layout.TFDS_INFO_JSON):
        splits = read_tfds_directory(directory).splits
        if how.split is not None:
            chosen_split(how.split, splits, directory)
        return {
            name: (layout.join(glob.escape(directory), splits[name].pattern),)
            for name in (splits if how.split is None else (how.split,))
            if splits[name].files
        }
    if how.split is not None:
        raise InputError(
            "files have no splits",
            where=some_of(inputs),
            got=f"split {how.split}",
            cure="give a directory with splits, or leave the split out",
        )
    return {"": inputs}


def _matched(patterns: Sequence[str], how: Listing) -> list[FileInfo]:
    files = match_files(patterns, allow_empty_files=how.allow_empty_files)
    if notice := check_joined(patterns, [info.path for info in files]):
        _log.warning("%s: %s", patterns[0], notice)
    return files


def list_looks(inputs: tuple[str, ...], how: Listing) -> Iterator[LookTask]:
    """Yields the files to examine that inputs match; none for a dataset."""
    report_sources(inputs)
    groups = _groups(inputs, how)
    for name, patterns in ({"": None} if groups is None else groups).items():
        yield from look_tasks(name, [] if patterns is None else _matched(patterns, how))


def list_parts(inputs: tuple[str, ...], how: Listing) -> Iterator[Part]:
    """Yields the parts of the files that inputs match, examining them if necessary.

    Raises:
        InputError: A pattern matches nothing, or files of several splits, or the
            options do not fit.
    """
    report_sources(inputs)
    return list_looked(None, inputs, how)


def list_one(path: StrPath, how: Listing) -> Iterator[Part]:
    """Yields the results of `list_parts` for one path or pattern."""
    return list_parts((path_text(path, "input"),), how)


def list_looked(
    gathered: Gathered | None, inputs: tuple[str, ...], how: Listing
) -> Iterator[Part]:
    """Yields the parts of files that were examined, or the shards of a dataset."""
    groups = _groups(inputs, how)
    if groups is None:
        check_options(how.records, "arrayrecord")
        yield from list_shards(inputs, how.split)
        return
    for name, patterns in groups.items():
        if not how.needs_looks:
            for info in _matched(patterns, how):
                yield from _cut_file(info._replace(crc32c=None), how.part_bytes)
            continue
        looked = None if gathered is None else looked_files(gathered, name)
        if looked is None:
            _matched(patterns, how)
        files: InputFiles = find_inputs(
            patterns,
            options=how.records,
            allow_empty_files=how.allow_empty_files,
            looked=looked,
        )
        walks = files.spec.format == "tfrecord" and not how.records.whole_files
        for file in files.first(len(files)):
            if walks:
                yield from _cut_file(file, how.part_bytes)
            else:
                yield file


def _cut_file(file: FileInfo | InputFile, part_bytes: int) -> Iterator[FilePart]:
    # One part, if it cannot be two of that size.
    count = max(file.size_bytes // part_bytes, 1) if part_bytes else 1
    edges = (file.size_bytes * number // count for number in range(count + 1))
    for begin, end in itertools.pairwise(edges):
        yield FilePart(file, begin, end)


def cut_part(part: Part, range_bytes: int) -> Iterator[FileWalk | FileRange]:
    """Yields the ranges of a part, or a walk for a TFRecord file."""
    if isinstance(part, FilePart):
        yield from walk_part(part, range_bytes)
    elif part.size_bytes:
        for begin, end in source_of(part.spec).cut(part, range_bytes=range_bytes):
            yield FileRange(part, begin, end)


def walk_part(part: FilePart, range_bytes: int) -> Iterator[FileWalk]:
    """Yields the walk of a part; nothing for a compressed file's later parts."""
    info, begin, end = part
    file = info if isinstance(info, InputFile) else look_into(info)
    if file.compression != "none":
        if not begin:
            yield FileWalk(file, 0, ())
        return
    chains = walk_frames(file, begin, end, step_bytes=range_bytes)
    yield FileWalk(file, begin, chains)


def by_file(
    found: FileWalk | FileRange, at: Any = beam.DoFn.TimestampParam
) -> tuple[bytes, tuple[int, FileWalk | FileRange]]:
    """Returns a walk or a range with its time, keyed by file."""
    # The time is part of the key, since a group has a time of its own.
    key = f"{at.micros} "
    if isinstance(found, FileWalk):
        key += f"{found.file.version} {found.file.path}"
    else:
        key += f"- {found.path}"
    return key.encode("utf-8", "surrogateescape"), (at.micros, found)


def join_file(
    group: tuple[bytes, Iterable[tuple[int, FileWalk | FileRange]]],
    range_bytes: int,
    window: Any = beam.DoFn.WindowParam,
) -> Iterator[WindowedValue]:
    """Yields the ranges of a file, with the time and window of its element."""
    times, found = zip(*group[1], strict=True)
    at = Timestamp(micros=times[0])
    for piece in cut_walks(found, range_bytes):
        yield WindowedValue(piece, at, (window,))


def cut_walks(
    found: Sequence[FileWalk | FileRange], range_bytes: int
) -> Iterator[FileRange]:
    """Yields the ranges of one file, once for each element that names it."""
    walks = [one for one in found if isinstance(one, FileWalk)]
    if not walks:
        yield from (one for one in found if not isinstance(one, FileWalk))
        return
    # Each element that names the file has all of its parts.
    times = sum(walk.begin_bytes == 0 for walk in walks)
    file = walks[0].file
    chains = itertools.chain.from_iterable(walk.chains for walk in walks)
    ranges: Iterable[tuple[int, int]] = [(0, -1)]
    if file.compression == "none":
        ranges = join_walks(file, chains, range_bytes=range_bytes)
    for begin, end in ranges:
        yield from itertools.repeat(FileRange(file, begin, end), times)


_HEAD = struct.Struct("<qI")  # The place, and the length of the path in bytes.


class SourceRecord(NamedTuple):
    """A record with its source.

    Attributes:
        file: The file's path.
        place: The byte of the decompressed file at which it begins, or the number of
            the row or record; docs/prepare/inputs.md lists formats.
        record: The record.
    """

    file: str
    place: int
    record: bytes


class RecordCoder(beam.coders.Coder):
    """Encodes `SourceRecord`: place, length of the path, path and record.

    It is deterministic, so elements can be keys.
    """

    def encode(self, value: tuple[str, int, bytes]) -> bytes:
        """Returns the bytes of an element."""
        file, place, record = value
        path = file.encode("utf-8", "surrogateescape")
        return b"".join((_HEAD.pack(place, len(path)), path, record))

    def decode(self, encoded: bytes) -> SourceRecord:
        """Returns the element."""
        place, path_bytes = _HEAD.unpack_from(encoded)
        record_begin = _HEAD.size + path_bytes
        path = encoded[_HEAD.size : record_begin]
        file = path.decode("utf-8", "surrogateescape")
        return SourceRecord(file, place, encoded[record_begin:])

    def is_deterministic(self) -> bool:
        """Returns True: equal elements have equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """Returns the type of the elements."""
        return SourceRecord

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordCoder)

    def __hash__(self) -> int:
        return hash(RecordCoder)


beam.coders.registry.register_coder(SourceRecord, RecordCoder)


class FileRange(NamedTuple):
    """A range of a file that begins and ends at records."""

    file: InputFile
    begin_bytes: int
    end_bytes: int  # -1: the end of a compressed file.

    @property
    def path(self) -> str:
        """The file's path."""
        return self.file.path

    def batches(self) -> Iterator[RecordBatch]:
        """Yields the records, and checks that the range was read to its end.

        Raises:
            CorruptRecordError: The range is damaged.
            DataLossError: Its records end elsewhere.
        """
        file, begin_bytes, end_bytes = self
        if not file.size_bytes:
            return
        whole = SourceRange(file_index=0, begin_bytes=begin_bytes, end_bytes=end_bytes)
        source = source_of(file.spec)
        reader = source.read(ReadRequest(file, whole))
        yield from reader.batches()
        span, last = reader.span, end_bytes in (-1, file.size_bytes)
        # Where places are not bytes, the format's cuts ensure that ranges meet.
        sized = file.compression == "none" and FORMATS[source.spec.format].sized
        if span.stop_bytes == end_bytes if sized else span.whole or not last:
            return
        raise DataLossError(
            "a range of an input file was not read to its end",
            where=f"{file.path}, range from byte offset {begin_bytes:,}",
            expected="the end of the file"
            if last
            else f"a range that ends at byte offset {end_bytes:,}",
            got=source.place_text(span.stop_bytes or 0),
            cure="do not write to the file while it is read, then run again",
        )


def read_range(piece: FileRange, with_source: bool) -> Iterator[Any]:
    """Yields the records of a range, and counts them."""
    records = counter("records-read")
    raw_bytes = counter("raw-bytes-read")
    for batch in piece.batches():
        records.inc(len(batch.records))
        raw_bytes.inc(sum(map(len, batch.records)))
        if with_source:
            for place, record in zip(batch.places, batch.records, strict=True):
                yield SourceRecord(piece.path, place, record)
        else:
            yield from batch.records
