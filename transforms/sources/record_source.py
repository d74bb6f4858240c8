"""The source of a format: what each offers, and the import of the one asked for.

A plan cuts the line of all stored bytes, from the sizes of files alone. A source knows
which records lie in a range of them: those that begin there. So every format is cut by
the same plan, made into shards by the same code, and proved to be whole by the same
spans.
"""

from __future__ import annotations

import abc
import functools
import importlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack, cast

from gristmill.dataset.base.errors import MissingPackageError
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import (
    FORMATS,
    TFRECORD,
    RecordOptions,
    SourceSpec,
)
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.range_reader import KeptPass, RangeReader, ReadRequest
from gristmill.transforms.sources.skipped import SkippedRegions


class ReadOptions(TypedDict, total=False):
    """The optional fields of `ReadRequest`."""

    skipped: SkippedRegions | None
    cuts: Sequence[int]
    kept: KeptPass | None


class Source(abc.ABC):
    """One format of input files, and how records are made of it.

    Args:
        spec: How records are made.

    Attributes:
        place_noun: How a place is called in messages.
    """

    place_noun = "byte offset"

    def __init__(self, spec: SourceSpec):
        self.spec = spec

    def read(
        self, file: InputFile, source: SourceRange, **options: Unpack[ReadOptions]
    ) -> RangeReader[Any]:
        """Returns a reader of one range of a file; see `ReadRequest`."""
        return self.reader(ReadRequest(file, source, **options))

    @abc.abstractmethod
    def reader(self, request: ReadRequest) -> RangeReader[Any]:
        """Returns a reader of one range of a file."""

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin and end at records, in order.

        By default, that is one.

        Args:
            file: The file.
            range_bytes: Minimum stored bytes of a range, except the last.
        """
        yield 0, file.size_bytes if file.compression == "none" else -1

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether the records of a range fill the places that it covers.

        Called only if nothing was damaged. A source that cannot tell returns True.

        Args:
            span: The reader's span of the range.
            raw_bytes: The lengths of all its records, added.
        """
        return True

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""

    def features(self) -> dict[str, Any] | None:
        """Returns the features of the records, as from `features.encode_features`.

        None if records are plain bytes.
        """
        return None

    def place_text(self, place: int) -> str:
        """Returns the name of a place in messages, such as `byte offset 1,234`."""
        return f"{self.place_noun} {place:,}"


class SourceModule(Protocol):
    """The interface of a format's module."""

    def make_source(self, spec: SourceSpec) -> Source:
        """Returns the source of a spec."""

    def find_spec(self, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for making records from listed files.

        Raises:
            InputError: The options are not for this format, or the files do not fit
                them.
            MissingPackageError: A package of an extra is missing.
        """


def source_module(format_name: str) -> SourceModule:
    """Returns the module of a format, one of `FORMATS`.

    Raises:
        MissingPackageError: A package is missing that reads the format.
    """
    try:
        module = importlib.import_module(FORMATS[format_name].module)
    except ModuleNotFoundError as e:
        missing = MissingPackageError.of(e)
        if missing is None:
            raise
        raise missing from e
    return cast(SourceModule, module)


@functools.lru_cache(maxsize=64)
def source_of(spec: SourceSpec | None) -> Source:
    """Returns the source that makes records by a spec, by default `TFRECORD`."""
    spec = TFRECORD if spec is None else spec
    return source_module(spec.format).make_source(spec)


# Bytes of the first read: a few records need less than the blocks of a conversion.
_FIRST_BYTES = 1 << 20


class NumberedRecord(NamedTuple):
    """A record of input files.

    Attributes:
        number: Its number among all records of the files, in their order.
        path: The file.
        place: Its place in the file, as in `RecordBatch.places`.
        place_text: The same for people, such as `byte offset 1,234`.
        record: The record.
    """

    number: int
    path: str
    place: int
    place_text: str
    record: bytes


def first_records(files: InputFiles, *, offset: int = 0) -> Iterator[NumberedRecord]:
    """Yields the records of files in order, as a conversion would write them.

    Args:
        files: The files.
        offset: Number of the first record to yield. Those before it are read as well.

    Raises:
        CorruptInputError: A file is damaged; the records before are yielded first.
        StorageError: Reading failed.
    """
    source, begin = source_of(files.spec), 0
    for index in range(len(files)):
        file = files[index]
        for batch in _batches(file):
            end = begin + len(batch.records)
            for at in range(max(offset - begin, 0), len(batch.records)):
                place = batch.places[at]
                text = source.place_text(place)
                yield NumberedRecord(
                    begin + at, file.path, place, text, batch.records[at]
                )
            begin = end


def _batches(file: InputFile) -> Iterator[RecordBatch]:
    """Yields the records of a file, those of its first bytes first."""
    source, size, begin = source_of(file.spec), file.size_bytes, 0
    plain = file.compression == "none"
    if plain and FORMATS[source.spec.format].sized and size > _FIRST_BYTES:
        first = SourceRange(file_index=0, begin_bytes=0, end_bytes=_FIRST_BYTES)
        reader = source.read(file, first)
        yield from reader.batches()
        begin = reader.span.stop_bytes or 0
    if begin < size:
        rest = SourceRange(
            file_index=0, begin_bytes=begin, end_bytes=size if plain else -1
        )
        yield from source.read(file, rest).batches()
