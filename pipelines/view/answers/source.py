"""Where a record comes from, down to the byte of its source file."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from gristmill.loader.provenance.locate import locate_record
from gristmill.loader.provenance.source_fields import SourcePlace
from gristmill.pipelines.text.location import source_lines
from gristmill.pipelines.text.source_details import (
    Detail,
    DetailedLocation,
    detailed,
)
from gristmill.pipelines.view.answers.record import checked_record
from gristmill.pipelines.view.answers.shown_data import Opened


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where a record comes from.

    Attributes:
        record: Its number.
        of: The name of its dataset in a mixture.
        source: The file and the place; None of a packed row.
        pieces: Of a packed row, where the document of each piece comes from.
    """

    record: int
    of: str
    source: dict[str, Any] | None
    pieces: list[dict[str, Any]] | None


def source(
    opened: Opened,
    *,
    record: int,
    of: str = "",
    split: str | None = None,
    read: int = 0,
) -> Source:
    """Returns where a record comes from; with `read`, also what the file tells of it.

    That is the number of a line or of a row group. It takes as long as to read the file
    to that place.
    """
    dataset, name = opened.dataset(of, split), opened.name(of)
    number = checked_record(dataset, record)
    location = locate_record(dataset, number, name=name or None)
    found = DetailedLocation(location, Detail(), (Detail(),) * len(location.pieces))
    if read:
        found = detailed(location, dataset.parts)
    pieces = [
        {
            "begin_token": piece.begin_token,
            "end_token": piece.end_token,
            "document": piece.document,
            "first_token": piece.first_token,
            **_place(piece, detail),
        }
        for piece, detail in zip(found.found.pieces, found.details, strict=True)
    ]
    return Source(
        record=number,
        of=name,
        source=None if pieces else _place(found.found, found.detail),
        pieces=pieces or None,
    )


def _place(place: SourcePlace, detail: Detail) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(SourcePlace))
    fields = {name.removeprefix("source_"): getattr(place, name) for name in names}
    begin, end = fields.pop("range_bytes") or (None, None)
    in_range = fields.pop("record_in_range")
    return {
        **fields,
        "file_bytes": _file_bytes(place.source_path),
        "number_in_range": in_range,
        "begin_bytes": begin,
        "end_bytes": end,
        **detail._asdict(),
        "text": [line.strip() for line in source_lines(place, detail)],
    }


def _file_bytes(path: str | None) -> int | None:
    """Returns the size of a local file, None of another, or if it is not there."""
    if path is None or "://" in path:
        return None
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return None
