"""The place of a record, with the line or row group that only its source knows."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import GristmillError, InputError
from gristmill.dataset.formats.parquet_file import ParquetFile
from gristmill.dataset.formats.streams import (
    InflatedStream,
    Readable,
)
from gristmill.dataset.metadata.sources import SourceFile, read_sources
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.order.schedule import Sighting
from gristmill.loader.provenance.trace import (
    FoundDocument,
    Location,
    without_message,
)
from gristmill.pipelines.text.printer import fact_lines, whole_number

LINE_FORMATS = ("csv", "jsonl", "text", "tsv", "tsv-unquoted")
_AT = {
    **dict.fromkeys(LINE_FORMATS, "line at"),
    "arrayrecord": "frame at",
    "tfrecord": "frame at",
    "json": "element at",
    "webdataset": "sample at",
}
_BLOCK_BYTES = 1 << 20
_NOT_HERE = "the path is relative to where the conversion ran, and not found from here"

_NOT_SEEN = (
    "not seen in these epochs; without --keep-remainder, a last batch that is not full "
    "is left out"
)

Fields = dict[str, Any]


class FilePlace(NamedTuple):
    """A place of a source file, as `gristmill trace` shows it.

    Attributes:
        path: The file.
        number: A byte offset, or the number of a record, row or line.
        is_line: Whether it is the number of a line, counted from 1.
    """

    path: str
    number: int
    is_line: bool = False

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the place that FILE@PLACE names, None for another text."""
        path, _, place = text.rpartition("@")
        number = whole_number(place.removeprefix("line:").replace(",", ""))
        if not path or number is None:
            return None
        return cls(path, number, is_line=place.startswith("line:"))

    def in_files(self, files: Iterable[SourceFile]) -> int | None:
        """Returns its number in the files of its path, None if there is no such line.

        A line becomes its byte offset in the first file that has it.
        """
        if not self.is_line:
            return self.number
        for file in files:
            if file.format in LINE_FORMATS and self.number > 0:
                with contextlib.suppress(GristmillError, OSError):
                    if (begin := _line_begin(file, self.number)) is not None:
                        return begin
        return None


def check_lines(places: Iterable[FilePlace], datasets: Sequence[Dataset]) -> None:
    """Raises InputError for a line of a file that is not as the conversion read it."""
    for place in places:
        for file in listed_sources(datasets, place.path) if place.is_line else ():
            info = storage_for(file.path).stat(file.path)
            if info is not None and file.version in (None, info.version):
                continue
            same = ""
            if info and info.size_bytes == file.size_bytes and "://" not in file.path:
                seconds, rest = divmod(int(file.version or 0), 10**9)
                same = "; if its bytes are the same, give it its old time: touch -d "
                same += f"@{seconds}.{rest:09} {shlex.quote(file.path)}"
            raise InputError(
                "a line can be found only in the file that the conversion read",
                where=file.path,
                expected="the file as it was then, with its time",
                got="a file written since, or touched" if info else "no such file",
                cure=f"give the byte offset instead, as trace --records shows it: "
                f"{place.path}@OFFSET; or put back that file{same}",
            )


def located(location: Location, datasets: Iterable[Dataset]) -> Fields:
    """Returns the fields of a location, with details from its source files.

    Lines have `source_line`, counted from 1; Parquet has `source_row_group` and
    `source_row_in_group`. A packed row has `pieces` with their sources.

    Args:
        location: The location.
        datasets: The datasets that it may be in.
    """
    found = dataclasses.asdict(location)
    pieces = found.pop("pieces")
    places = [found]
    if pieces:
        found = {name: found[name] for name in found if "source_" not in name}
        found["pieces"] = places = [*map(without_message, pieces)]
    by_file: dict[SourceFile, list[Fields]] = defaultdict(list)
    for place in places:
        path = place["source_path"]
        files = set() if path is None else {*listed_sources(datasets, path)}
        same = [file for file in files if file.format == place["source_format"]]
        if len(same) == 1:  # Otherwise several files of its name were read.
            by_file[same[0]].append(place)
    for file, some in by_file.items():
        with contextlib.suppress(GristmillError, OSError, ImportError):
            _add_details(file, some)
        # A missing file was deleted, or is on another machine.
        if not ("://" in file.path or os.path.isabs(file.path)):
            note = None if os.path.exists(file.path) else _NOT_HERE
            for place in some:
                place["source_note"] = place["source_note"] or note
    return found


def listed_sources(datasets: Iterable[Dataset], path: str) -> Iterator[SourceFile]:
    """Yields the sources of datasets that have a path."""
    for dataset in datasets:
        for part in dataset.stored.parts:
            for split in part.editions:
                files = read_sources(part.path, split)
                if files is not None:
                    yield from (files[n] for n in files.numbers_of([path])[path])


def _add_details(file: SourceFile, places: Sequence[Fields]) -> None:
    """Adds details of places that only their file has."""
    if file.format in LINE_FORMATS:
        offsets = [place["source_offset_bytes"] or 0 for place in places]
        for place, line in zip(places, _lines_at(file, offsets), strict=True):
            place["source_line"] = line
    elif file.format == "parquet":
        with contextlib.closing(
            ParquetFile(file.path, file.size_bytes, file.version)
        ) as opened:
            for place in places:
                row = place["source_record"] or 0
                for group in opened.places.groups_from(row):
                    place["source_row_group"] = group.number
                    place["source_row_in_group"] = row - group.first_row
                    break


def _lines_at(file: SourceFile, offsets: Sequence[int]) -> list[int]:
    """Returns the numbers, from 1, of the lines that begin at some offsets.

    Offsets are bytes of the decompressed file, which is read up to the last of them.
    """
    lines = np.ones(len(offsets), np.int64)
    for ends in _line_ends(file, stop=max(offsets)):
        lines += np.searchsorted(ends, offsets)
    return [int(line) for line in lines]


def _line_begin(file: SourceFile, line: int) -> int | None:
    """Returns the start of a line, counted from 1; None if there is none."""
    left = line - 1
    for ends in _line_ends(file) if left else ():
        if left <= len(ends):
            return int(ends[left - 1]) + 1
        left -= len(ends)
    return None if left else 0


def _line_ends(
    file: SourceFile, *, stop: int | None = None
) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the ends of lines in each block of a file, in its recorded version."""
    path, kind, at = file.path, file.compression, 0
    end = stop if kind == "none" else None
    with storage_for(path).open(path, end=end, version=file.version) as opened:
        stream: Readable = opened
        if kind != "none":
            stream = InflatedStream(opened, path=path, compression=kind)
        while (stop is None or at < stop) and (piece := stream.read(_BLOCK_BYTES)):
            yield at + np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n"))
            at += len(piece)


def place_facts(found: Mapping[str, Any], token: int | None = None) -> Fields:
    """Returns the fields of `located` for people.

    Args:
        found: The fields.
        token: The requested token of the row.
    """
    inside = (
        f"record {found['record_in_shard']:,} of the shard, in the chunk at byte "
        f"offset {found['offset_bytes']:,}"
    )
    facts = {name: found[name] for name in ("dataset", "record")}
    facts["shard"] = [found["shard"], inside]
    if "pieces" not in found:
        facts |= source_facts(found)
        if token is not None:
            facts["token"] = f"{token:,} of the row is padding"
    return facts


def place_text(found: Mapping[str, Any], token: int | None = None) -> str:
    """Returns a place, and those of the pieces of a packed row, for people."""
    pieces = [piece_facts(piece, token) for piece in found.get("pieces", ())]
    every = map(fact_lines, (place_facts(found, token), *pieces))
    return "\n".join(itertools.chain.from_iterable(every))


def sightings_text(found: Sequence[Sighting]) -> list[str]:
    """Returns the steps and rows that see a record, as lines."""
    return [
        f"step {step:,}, row {row:,}: epoch {epoch:,}" for epoch, step, row in found
    ] or [_NOT_SEEN]


def document_text(found: FoundDocument) -> str:
    """Returns the place and the sightings of a document, for people."""
    about = f"document {found.document:,} of the shard"
    about += "" if found.pieces else "; it has no token, and is in no row"
    facts = {"dataset": found.dataset, "shard": [found.shard, about]}
    lines = fact_lines(facts)
    for piece in found.pieces:
        end = piece.first_token + piece.end_token - piece.begin_token
        head = (
            f"{piece.record:,}, tokens {piece.begin_token:,} to {piece.end_token:,}: "
            f"its tokens {piece.first_token:,} to {end:,}"
        )
        lines += fact_lines({"record": [head, *sightings_text(piece.sightings)]})
    return "\n".join(lines)


def piece_facts(piece: Mapping[str, Any], token: int | None = None) -> Fields:
    """Returns the fields of a piece of a packed row for people."""
    first = piece["first_token"]
    begin = f", from its token {first:,} on" if first else ""
    facts: Fields = {
        "tokens": f"{piece['begin_token']:,} to {piece['end_token']:,}: document "
        f"{piece['document']:,} of the shard{begin}"
    }
    if token is not None and piece.get("role") is not None:
        message, weight = piece["message"], piece["weight"]
        told = [piece["role"] + ("" if message is None else f", message {message:,}")]
        told += ["trained" if piece["trained"] else "not trained"]
        told += [] if weight in (None, 1) else [f"weight {weight:g}"]
        facts["token"] = f"{token:,}: {', '.join(told)}"
    return facts | source_facts(piece)


def source_facts(found: Mapping[str, Any]) -> Fields:
    """Returns the known facts of a source, for people."""
    lines = [] if found["source_path"] is None else [found["source_path"]]
    number, offset_bytes = found["source_record"], found["source_offset_bytes"]
    kind = found["source_format"]
    if number is not None:
        unit = "row" if kind == "parquet" else "record"
        group = ""
        if (of := found.get("source_row_group")) is not None:
            group = f", row {found['source_row_in_group']:,} of row group {of:,}"
        lines.append(f"{unit} {number:,} of that file{group}")
    elif offset_bytes is not None:
        which = _AT.get(kind, "record at")
        if (line := found.get("source_line")) is not None:
            which = f"line {line:,},"
        elif (sample := found["source_sample"]) is not None:
            which = f"sample {sample},"
        inside = ""
        if (packed := found["source_compression"]) not in (None, "none"):
            inside = f" of the decompressed file ({packed})"
        lines.append(f"{which} byte offset {offset_bytes:,}{inside}")
    return {"source": lines, "note": found["source_note"]}
