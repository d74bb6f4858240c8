"""The line or the row group of a place, which only the source file tells."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.formats.parquet.parquet_file import ParquetFile
from gristmill.dataset.formats.streams.inflated_stream import (
    InflatedStream,
    Readable,
)
from gristmill.dataset.metadata.sources import SourceFile, read_sources
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.locate import Location
from gristmill.loader.provenance.source_fields import Piece, SourcePlace

LINE_FORMATS = ("csv", "jsonl", "text", "tsv")
_BLOCK_BYTES = 1 << 20
_NOT_HERE = "the path is relative to where the conversion ran, and not found from here"


def lines_at(file: SourceFile, offsets: Sequence[int]) -> list[int]:
    """Returns the numbers, from 1, of the lines that begin at rising offsets.

    Reads the file to the last of them, which count bytes of the decompressed file.
    """
    found, line, at = [], 1, 0
    with _opened(file, end=offsets[-1]) as stream:
        for offset in offsets:
            while at < offset and (
                piece := stream.read(min(offset - at, _BLOCK_BYTES))
            ):
                line += piece.count(b"\n")
                at += len(piece)
            found.append(line)
    return found


def line_begin(file: SourceFile, line: int) -> int | None:
    """Returns where a line, counted from 1, begins; None if there is none."""
    left, at = line - 1, 0
    with _opened(file) as stream:
        while left and (piece := stream.read(_BLOCK_BYTES)):
            count = piece.count(b"\n")
            if count >= left:
                end = -1
                for _ in range(left):
                    end = piece.index(b"\n", end + 1)
                return at + end + 1
            left -= count
            at += len(piece)
    return None if left else at


@contextlib.contextmanager
def _opened(file: SourceFile, *, end: int | None = None) -> Iterator[Readable]:
    """Opens the version of a file that was read, decompressed."""
    plain = file.compression == "none"
    with storage_for(file.path).open(
        file.path, end=end if plain else None, version=file.version
    ) as opened:
        yield (
            opened
            if plain
            else InflatedStream(opened, path=file.path, compression=file.compression)
        )


class Detail(NamedTuple):
    """What the source file tells of a place in it, as far as it is there.

    Attributes:
        line: The line, counted from 1.
        row_group: The row group of a Parquet file.
        row_in_group: The number of the row in it.
    """

    line: int | None = None
    row_group: int | None = None
    row_in_group: int | None = None


class DetailedLocation(NamedTuple):
    """A location, and what the source files tell of the places in it.

    Attributes:
        found: The location.
        detail: Detail of its record.
        details: Details of its pieces.
    """

    found: Location
    detail: Detail
    details: tuple[Detail, ...]


def detailed(location: Location, datasets: Iterable[Dataset]) -> DetailedLocation:
    """Reads the source files of a location for what only they tell.

    Args:
        location: The location.
        datasets: Those that it can be in.
    """
    places: list[SourcePlace] = [location, *location.pieces]
    details, notes = [Detail()] * len(places), [place.source_note for place in places]
    by_file: dict[SourceFile, list[int]] = defaultdict(list)
    for number, place in enumerate(places):
        if (file := _source_file(place, datasets)) is not None:
            by_file[file].append(number)
    for file, numbers in by_file.items():
        own = [places[number] for number in numbers]
        with contextlib.suppress(GristmillError, OSError, ImportError):
            for number, detail in zip(numbers, _details(file, own), strict=True):
                details[number] = detail
        if not _is_there(file.path):
            for number in numbers:
                notes[number] = notes[number] or _NOT_HERE
    record, *pieces = (
        dataclasses.replace(place, source_note=note)
        for place, note in zip(places, notes, strict=True)
    )
    found = dataclasses.replace(
        cast(Location, record), pieces=tuple(cast(list[Piece], pieces))
    )
    return DetailedLocation(found, details[0], tuple(details[1:]))


def _source_file(place: SourcePlace, datasets: Iterable[Dataset]) -> SourceFile | None:
    """Returns the source of a record, None if several files of its name were read."""
    if place.source_path is None:
        return None
    found = {
        file
        for file in listed_sources(datasets, place.source_path)
        if file.format == place.source_format
    }
    return found.pop() if len(found) == 1 else None


def listed_sources(datasets: Iterable[Dataset], path: str) -> Iterator[SourceFile]:
    """Yields the sources of datasets that have a path."""
    for dataset in datasets:
        for part in dataset.parts:
            for split in part.committed.parts if part.committed else ():
                files = read_sources(part.path, split)
                if files is not None:
                    yield from (files[n] for n in files.numbers_of([path])[path])


def _is_there(path: str) -> bool:
    """Returns whether a file with a relative path is found from here."""
    if os.path.isabs(path) or "://" in path:
        return True  # What is not there was deleted, or is on another machine.
    return os.path.exists(path)


def _details(file: SourceFile, places: Sequence[SourcePlace]) -> Iterable[Detail]:
    """Returns the details of places in a file."""
    if file.format in LINE_FORMATS:
        offsets = [place.source_offset_bytes or 0 for place in places]
        rising = sorted(set(offsets))
        lines = dict(zip(rising, lines_at(file, rising), strict=True))
        return [Detail(line=lines[offset]) for offset in offsets]
    if file.format == "parquet":
        rows = [place.source_record or 0 for place in places]
        return [_row_group(file, row) for row in rows]
    return [Detail()] * len(places)


def _row_group(file: SourceFile, row: int) -> Detail:
    with (
        contextlib.suppress(GristmillError, OSError, ImportError),
        contextlib.closing(
            ParquetFile(file.path, file.size_bytes, file.version)
        ) as opened,
    ):
        for group in opened.places.groups_from(row):
            return Detail(row_group=group.number, row_in_group=row - group.first_row)
    return Detail()


def line_offset(files: Iterable[SourceFile], line: int) -> int | None:
    """Returns where a line, counted from 1, begins in the first file that has it."""
    for file in files:
        if file.format in LINE_FORMATS and line > 0:
            with contextlib.suppress(GristmillError, OSError):
                begin = line_begin(file, line)
                if begin is not None:
                    return begin
    return None
