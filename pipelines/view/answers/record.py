"""One record: where it is, what it holds, and where it comes from."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, cast

import numpy as np

from gristmill.dataset.packed.row_format import RowFormat, RowsKind, decode_rows
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.loader.data.shard_info import ShardInfo
from gristmill.loader.provenance.locate import locate_record
from gristmill.loader.provenance.packed_shard import packed_of
from gristmill.loader.provenance.source_fields import SourcePlace
from gristmill.loader.provenance.source_place import cached_footer
from gristmill.pipelines.text.location import source_lines
from gristmill.pipelines.text.source_details import (
    Detail,
    DetailedLocation,
    detailed,
)
from gristmill.pipelines.text.supervision import spans_of_piece
from gristmill.pipelines.view.answers.opened_datasets import Opened, checked_number
from gristmill.pipelines.view.answers.record_fields import (
    Field,
    fields_of,
    longest_text,
)
from gristmill.pipelines.view.answers.shards import size_of

_TOKENS_SHOWN = 65_536
_PREVIEW_TOKENS, _PREVIEW_CHARACTERS = 32, 80


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
    """A piece of a document in a packed row.

    Attributes:
        begin_token: Its first token in the row.
        first_token: The number of that token in its document.
        num_tokens: How many it has.
        tokens: Id and text of each that is shown; None where the text is not known.
        spans: Role and message of a conversation's spans, and which are trained.
    """

    begin_token: int
    first_token: int
    num_tokens: int
    tokens: list[tuple[int, str | None]]
    spans: list[dict[str, Any]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A record.

    Attributes:
        record: Its number in the dataset.
        of: The dataset's name in a mixture.
        records: How many there are.
        shard: The number of the shard that holds it.
        file: The file of that shard.
        file_bytes: The size of that.
        position: Its number in the shard.
        offset_bytes: Where its chunk begins in the file.
        end_bytes: Where its chunk ends.
        chunk_records: How many records are in that chunk.
        size_bytes: Its size.
        fields: What it holds; none of packed rows.
        segments: The pieces of a packed row, None of another record.
        length: Tokens that a packed row can hold.
    """

    record: int
    of: str
    records: int
    shard: int
    file: str
    file_bytes: int
    position: int
    offset_bytes: int
    end_bytes: int
    chunk_records: int
    size_bytes: int
    fields: list[Field]
    segments: list[Segment] | None
    length: int | None


def record(
    opened: Opened, *, record: int, of: str = "", split: str | None = None
) -> Record:
    """Returns a record, which it reads."""
    dataset = opened.dataset(of, split)
    number = checked_record(dataset, record)
    shards, positions = dataset.find([number])
    shard, position = int(shards[0]), int(positions[0])
    part, part_shard = dataset.part_of(shard)
    info = part.shard(part_shard)
    (data,) = dataset.read([number])
    row_format = row_format_of(part, info)
    segments = None
    if row_format is not None:
        segments = _segments(data, row_format, opened)
    return Record(
        record=number,
        of=opened.name(of),
        records=len(dataset),
        shard=shard,
        file=info.path,
        file_bytes=size_of(info),
        position=position,
        **chunk_of(info, position),
        size_bytes=len(data),
        fields=[] if segments is not None else fields_of(data),
        segments=segments,
        length=None if row_format is None else row_format.length,
    )


def checked_record(dataset: Dataset, record: int) -> int:
    """Returns the number of a record that there is.

    Raises:
        InputError: There is no such record.
    """
    name = shards_of(dataset).name
    return checked_number(record, len(dataset), what="record", where=name)


def chunk_of(info: ShardInfo, position: int) -> dict[str, int]:
    """Returns the place of a record's chunk in its shard, and the chunk's records."""
    footer = cached_footer(info.path, size_of(info), info.records_digest)
    ends = np.cumsum(footer.chunk_records)
    chunk = int(np.searchsorted(ends, position, side="right"))
    begin, end = footer.chunk_offsets[chunk : chunk + 2].tolist()
    return {
        "offset_bytes": begin,
        "end_bytes": end,
        "chunk_records": int(footer.chunk_records[chunk]),
    }


def row_format_of(part: Dataset, info: ShardInfo) -> RowFormat | None:
    """Returns the format of a shard's packed rows, None for other records."""
    packed = packed_of(part, info)
    if packed is None:
        return None
    return RowFormat(packed.length, packed.id_bytes, cast(RowsKind, packed.rows))


def preview_of(opened: Opened, data: bytes, row_format: RowFormat | None) -> str | None:
    """Returns the beginning of a record, in a line; None if it has no text."""
    if row_format is not None:
        row = decode_rows(row_format, [data])
        first = row.tokens[: min(int(row.lengths[0]), _PREVIEW_TOKENS)].tolist()
        texts = opened.texts(first)
        shown = " ".join(map(str, first))
        if None not in texts:
            shown = "".join(map(str, texts))
    elif (text := longest_text(data)) is None:
        return None
    else:
        shown = text
    return " ".join(shown.split())[:_PREVIEW_CHARACTERS]


def _segments(data: bytes, row_format: RowFormat, opened: Opened) -> list[Segment]:
    row = decode_rows(row_format, [data])
    ends = np.cumsum(row.lengths, dtype=np.int64)
    found, left = [], _TOKENS_SHOWN
    columns = row.firsts, ends - row.lengths, ends
    for number, (first, begin, end) in enumerate(
        zip(*map(np.ndarray.tolist, columns), strict=True)
    ):
        stop = min(end, begin + left)
        shown: list[Any] = row.tokens[begin:stop].tolist()
        left -= len(shown)
        found.append(
            Segment(
                begin_token=begin,
                first_token=first,
                num_tokens=end - begin,
                tokens=list(zip(shown, opened.texts(shown), strict=True)),
                spans=None
                if row.spans is None
                else [*spans_of_piece(row.spans, number)],
            )
        )
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where a record comes from.

    Attributes:
        record: Its number.
        of: The name of its dataset in a mixture.
        source: The file and the place; None of a packed row.
        pieces: Source of the document of each piece of a packed row.
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
    """Returns the origin of a record; with `read`, also facts from the file.

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
    """Returns the size of a local file, None for a remote or missing one."""
    if path is None or "://" in path:
        return None
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return None
