"""The records of input files in order, as a conversion would write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.source import source_of

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
