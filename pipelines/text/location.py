"""The place of a row or a document, for `gristmill trace`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from gristmill.dataset.base.whole_numbers import whole_number
from gristmill.loader.provenance.find_document import FoundDocument
from gristmill.loader.provenance.source_fields import SourcePlace, without_message
from gristmill.pipelines.text.source_details import (
    LINE_FORMATS,
    Detail,
    DetailedLocation,
)

NOT_SEEN = (
    "not seen in these epochs; without --keep-remainder, a last batch that is not full "
    "is left out"
)


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
        """Returns the place that FILE@PLACE names, None of another text."""
        path, _, place = text.rpartition("@")
        number = whole_number(place.removeprefix("line:").replace(",", ""))
        if not path or number is None:
            return None
        return cls(path, number, is_line=place.startswith("line:"))


def location_json(location: DetailedLocation) -> dict[str, Any]:
    """Returns a location as JSON fields; those of pieces only of a packed row."""
    fields = dataclasses.asdict(location.found)
    if not location.found.pieces:
        del fields["pieces"]
    else:
        # The sources are those of the pieces.
        fields = {name: fields[name] for name in fields if "source_" not in name}
        fields["pieces"] = [without_message(piece) for piece in fields["pieces"]]
    for own, detail in (
        (fields, location.detail),
        *zip(fields.get("pieces", ()), location.details, strict=True),
    ):
        own |= {
            f"source_{name}": value
            for name, value in detail._asdict().items()
            if value is not None
        }
    return fields


def location_text(location: DetailedLocation, token: int | None = None) -> str:
    """Returns a location in lines for people."""
    found = location.found
    lines = [f"dataset  {found.dataset}", f"record   {found.record:,}"]
    if found.shard is not None:
        lines += [
            f"shard    {found.shard}",
            f"         record {found.record_in_shard:,} of the shard, in the chunk at "
            f"byte offset {found.offset_bytes:,}",
        ]
    for piece, detail in zip(found.pieces, location.details, strict=True):
        lines.append(
            f"tokens   {piece.begin_token:,} to {piece.end_token:,}: document "
            f"{piece.document:,} of the shard"
            + (
                f", from its token {piece.first_token:,} on"
                if piece.first_token
                else ""
            )
        )
        if token is not None and piece.role is not None:
            message = "" if piece.message is None else f", message {piece.message:,}"
            trained = "trained" if piece.trained else "not trained"
            weight = (
                f", weight {piece.weight:g}" if piece.weight not in (None, 1) else ""
            )
            lines.append(
                f"token    {token:,}: {piece.role}{message}, {trained}{weight}"
            )
        lines += source_lines(piece, detail)
    if token is not None and not found.pieces:
        lines.append(f"token    {token:,} of the row is padding")
    return "\n".join([*lines, *source_lines(found, location.detail)])


def source_lines(found: SourcePlace, detail: Detail) -> Iterator[str]:
    """Yields what is known of a source, in lines."""
    if found.source_path is not None:
        yield f"source   {found.source_path}"
    inside = ""
    if found.source_compression not in (None, "none"):
        inside = f" of the decompressed file ({found.source_compression})"
    if found.source_record is not None:
        unit = "row" if found.source_format == "parquet" else "record"
        group = ""
        if detail.row_group is not None:
            group = f", row {detail.row_in_group:,} of row group {detail.row_group:,}"
        yield f"         {unit} {found.source_record:,} of that file{group}"
    elif found.source_offset_bytes is not None:
        which = "frame at"
        if detail.line is not None:
            which = f"line {detail.line:,},"
        elif found.source_format in LINE_FORMATS:
            which = "line at"
        elif found.source_sample is not None:
            which = f"sample {found.source_sample},"
        elif found.source_format == "webdataset":
            which = "sample at"
        yield f"         {which} byte offset {found.source_offset_bytes:,}{inside}"
    if found.source_note is not None:
        yield f"note     {found.source_note}"


def document_text(found: FoundDocument) -> str:
    """Returns the place and the sightings of a document, in lines for people."""
    lines = [
        f"dataset  {found.dataset}",
        f"shard    {found.shard}",
        f"         document {found.document:,} of the shard",
    ]
    if not found.pieces:
        lines.append("         it has no token: it is in no row")
    for piece in found.pieces:
        end = piece.first_token + piece.end_token - piece.begin_token
        lines.append(
            f"record   {piece.record:,}, tokens {piece.begin_token:,} to "
            f"{piece.end_token:,}: its tokens {piece.first_token:,} to {end:,}"
        )
        lines += [
            f"         step {step:,}, row {row:,}: epoch {epoch:,}"
            for epoch, step, row in piece.sightings
        ]
        if not piece.sightings:
            lines.append(f"         {NOT_SEEN}")
    return "\n".join(lines)
