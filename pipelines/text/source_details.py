"""What only the source file itself tells of a place in it: line, or row group."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from gristmill.dataset.base.errors import GristmillError, InputError
from gristmill.dataset.formats.parquet.parquet_file import ParquetFile
from gristmill.dataset.formats.streams.inflated_stream import Compression
from gristmill.dataset.metadata.provenance import numbers_of, read_source_files
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.locate import Location
from gristmill.loader.provenance.source_fields import Piece, SourcePlace
from gristmill.pipelines.text.source_line import (
    LINE_FORMATS,
    line_begin,
    lines_at,
    source_files,
    source_line,
)
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.input_files import InputFile


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
        detail: Of its record.
        details: Of its pieces.
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
        InputError: The file is no file of lines, or not one that was packed, is not as
            it was, or has no such line.
    """
    for dataset in datasets:
        for part in dataset.parts:
            for split in part.committed.parts if part.committed else ():
                files = read_source_files(part.path, split)
                for file in (files[number] for number in numbers_of(files, path)):
                    if file.format not in LINE_FORMATS or not file.spec or line < 1:
                        continue
                    read = InputFile(
                        file.path,
                        file.size_bytes,
                        file.version,
                        cast(Compression, file.compression),
                        file.noted_ns,
                        SourceSpec.from_json(file.spec),
                    )
                    begin = line_begin(read, line)
                    if begin is not None:
                        return begin
    raise InputError(
        "there is no such line",
        where=path,
        expected="a line, counted from 1, of a file of lines that was converted",
        got=f"line {line:,}",
        cure="give FILE as trace shows it, with a byte offset or such a line",
    )
