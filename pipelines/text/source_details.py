"""The line or the row group of a place, which only the source file tells."""

from __future__ import annotations

import contextlib
import dataclasses
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from gristmill.dataset.base.errors import GristmillError, InputError
from gristmill.dataset.formats.parquet.parquet_file import ParquetFile
from gristmill.dataset.formats.streams.inflated_stream import (
    Compression,
    InflatedStream,
    Readable,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.lineage import read_lineage
from gristmill.dataset.metadata.provenance import numbers_of
from gristmill.dataset.metadata.sources import SourceFile, read_source_files
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.locate import Location
from gristmill.loader.provenance.source_fields import Piece, SourcePlace
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.quarantine import DamageHandler
from gristmill.transforms.sources.record_source import source_of

LINE_FORMATS = ("csv", "jsonl", "text", "tsv")
_BLOCK_BYTES = 1 << 20


class SourceLine(NamedTuple):
    """Where a record begins in a file of lines.

    Attributes:
        line: The line, counted from 1.
        offset_bytes: Its byte offset in the (decompressed) file.
    """

    line: int
    offset_bytes: int


def source_line(location: Location, datasets: Iterable[Dataset]) -> SourceLine | None:
    """Returns the offset of the line from which a record was made.

    Reads the range of the source file that the record is in, and counts the lines
    before it.

    Args:
        location: Where the record is.
        datasets: Those that it can be in.

    Returns:
        None if the source is no file of lines, is not there any more, or has not what
        it had.
    """
    wanted = location.source_record_in_range
    if location.source_format not in LINE_FORMATS or wanted is None:
        return None
    if location.source_range_bytes is None:
        return None
    found = set()
    for file in source_files(location, datasets):
        with contextlib.suppress(GristmillError, OSError):
            places = places_in(file, *location.source_range_bytes)
            if wanted < len(places):
                (line,) = lines_at(file, [places[wanted]])
                found.add(SourceLine(line, places[wanted]))
    # Several, if a dataset on the way was made of the file twice, in different ways.
    return found.pop() if len(found) == 1 else None


def source_files(location: Location, datasets: Iterable[Dataset]) -> set[InputFile]:
    """Returns the file that a record was made of, as it was read then.

    There are several if a dataset on the way was made of it in different ways, none if
    that is not known.

    Args:
        location: Where the record is.
        datasets: Those that it can be in.
    """
    return {
        file
        for dataset in datasets
        if (location.shard or "").startswith(dataset.path)
        for file in _files(dataset, location)
    }


def _files(dataset: Dataset, location: Location) -> Iterable[InputFile]:
    """Yields the source of a record, as what its edition was made of lists it."""
    manifest, split = dataset.manifest, dataset.split
    if manifest is None or split is None:
        return
    shard = (location.shard or "").removeprefix(dataset.path).lstrip("/")
    number, parts = (
        layout.edition_of(shard, manifest.name, split),
        manifest.splits[split].parts,
    )
    # An edition from which records were removed has shards of another one.
    for part in [one for one in parts if one.edition == number] or parts:
        if not location.passed:
            files = read_source_files(dataset.path, part)
        else:
            ancestors = read_lineage(dataset.path, part)[len(location.passed) - 1 :]
            files = ancestors[0].files if ancestors else ()
        for file in files:
            if file.path == location.source_path:
                yield input_file_of(file)


def input_file_of(file: SourceFile) -> InputFile:
    """Returns a source file as it was when it was read."""
    return InputFile(
        file.path,
        file.size_bytes,
        file.version,
        cast(Compression, file.compression),
        file.noted_ns,
        SourceSpec.from_json(file.spec),
    )


def places_in(file: InputFile, begin: int, end: int) -> list[int]:
    """Returns the places of the records that begin in a range, read from the file.

    Args:
        file: The file.
        begin: The first byte of the range, of the decompressed file.
        end: The byte after the last.

    Returns:
        None for a file that has not what it had.

    Raises:
        GristmillError: It cannot be read.
    """
    plain = file.compression == "none"
    part = SourceRange(
        file_index=0,
        begin_bytes=begin if plain else 0,
        end_bytes=end if plain else -1,
        exact=True,
    )
    places: list[int] = []
    # To the end of the range: then it is known that the file is the one that it was.
    reader = source_of(file.spec).read(file, part, on_damage=DamageHandler())
    for batch in reader.batches():
        places += batch.places[bisect_left(batch.places, begin) :]
    return [] if plain and reader.span.stop_bytes != end else places


def lines_at(file: InputFile, offsets: Sequence[int]) -> list[int]:
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


def line_begin(file: InputFile, line: int) -> int | None:
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
def _opened(file: InputFile, *, end: int | None = None) -> Iterator[Readable]:
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
    parts = [part for one in datasets for part in one.parts]
    detail = Detail()
    if not location.pieces:
        location, detail = _with_line(location, parts)
    pieces, details = list(location.pieces), [Detail()] * len(location.pieces)
    places: dict[InputFile, list[tuple[int, int]]] = {}
    for number, piece in enumerate(pieces):
        here = _of_piece(location, piece)
        if piece.passed and piece.source_format in LINE_FORMATS:
            here, details[number] = _with_line(here, parts)
            pieces[number] = dataclasses.replace(piece, **_source(here))
        elif not piece.passed and len(files := source_files(here, parts)) == 1:
            if piece.source_format in LINE_FORMATS:
                place = piece.source_offset_bytes or 0
                places.setdefault(files.pop(), []).append((place, number))
            elif piece.source_format == "parquet":
                details[number] = _row_group(files.pop(), piece.source_record or 0)
    for file, wanted in places.items():
        wanted.sort()
        with contextlib.suppress(GristmillError, OSError):
            lines = lines_at(file, [place for place, _ in wanted])
            for (_, number), line in zip(wanted, lines, strict=True):
                details[number] = Detail(line=line)
    found = dataclasses.replace(location, pieces=tuple(pieces))
    return DetailedLocation(found, detail, tuple(details))


def _with_line(location: Location, parts: Sequence[Dataset]) -> tuple[Location, Detail]:
    line = source_line(location, parts)
    if line is None:
        return location, Detail()
    location = dataclasses.replace(
        location, source_offset_bytes=line.offset_bytes, source_note=None
    )
    return location, Detail(line=line.line)


def _source(place: SourcePlace) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(SourcePlace))
    return {name: getattr(place, name) for name in names}


def _of_piece(location: Location, piece: Piece) -> Location:
    """Returns a location with the source of one of its pieces."""
    return dataclasses.replace(location, pieces=(), **_source(piece))


def _row_group(file: InputFile, row: int) -> Detail:
    with (
        contextlib.suppress(GristmillError, OSError, ImportError),
        contextlib.closing(
            ParquetFile(file.path, file.size_bytes, file.version)
        ) as opened,
    ):
        for group in opened.places.groups_from(row):
            return Detail(row_group=group.number, row_in_group=row - group.first_row)
    return Detail()


def line_offset(datasets: Iterable[Dataset], path: str, line: int) -> int:
    """Returns where a line, counted from 1, begins in a file that was packed.

    Reads the file to that line.

    Raises:
        InputError: The file is not a file of lines, or not one that was packed, is not
            as it was, or has no such line.
    """
    for dataset in datasets:
        for part in dataset.parts:
            for split in part.committed.parts if part.committed else ():
                files = read_source_files(part.path, split)
                for file in (files[number] for number in numbers_of(files, path)):
                    if file.format not in LINE_FORMATS or line < 1:
                        continue
                    begin = line_begin(input_file_of(file), line)
                    if begin is not None:
                        return begin
    raise InputError(
        "there is no such line",
        where=path,
        expected="a line, counted from 1, of a file of lines that was converted",
        got=f"line {line:,}",
        cure="give FILE as trace shows it, with a byte offset or such a line",
    )
