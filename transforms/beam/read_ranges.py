"""The last step of every reader: ranges of files become records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import apache_beam as beam

from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.transforms.beam.job_metrics import counter
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import source_of

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
        reader = source.read(file, whole)
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
