"""The source of a record, or of a document in a row, as told to users."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from gristmill.loader.base.table_text import table_text

_PIECES_SHOWN = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourcePlace:
    """The file that a record or a document comes from, and its place there.

    What is not known is None; nothing is guessed.

    Attributes:
        source_path: The file it was converted from, as given to the conversion. For a
            dataset made from others, the file that the first was made from.
        source_format: The format of that file, such as `tfrecord`.
        source_record: The number of the record or row in that file, for a format that
            numbers them: ArrayRecord, Parquet. The fields in bytes are None then.
        source_offset_bytes: Offset of the record's frame in that file, or of the first
            header of its sample, or of its line; in the decompressed file where
            `source_compression` is not `none`.
        source_sample: The name of the sample in a tar of WebDataset.
        source_compression: `none`, `gzip`, `zlib` or `zstd`.
        source_note: Why part of the source is not known, or what was made of it.
    """

    source_path: str | None = None
    source_format: str | None = None
    source_record: int | None = None
    source_offset_bytes: int | None = None
    source_sample: str | None = None
    source_compression: str | None = None
    source_note: str | None = None

    def __str__(self) -> str:
        return table_text(type(self).__name__, _known(self))


_OF_MESSAGE = ("role", "message", "trained", "weight")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece(SourcePlace):
    """A piece of a document in a packed row, and where the document comes from.

    Attributes:
        begin_token: Its first token in the row.
        end_token: The token of the row after its last.
        document: The number of the document among those of its shard.
        first_token: The number, in the document, of the piece's first token: above 0
            where a document was cut.
        role: Role of the token of a conversation that was asked for: one of `ROLES`,
            or "template". None for other tokens and rows.
        message: The number of its message in the conversation, None in the template.
        trained: Whether it is trained on.
        weight: Its weight in the loss, where it is trained on.
    """

    begin_token: int
    end_token: int
    document: int
    first_token: int
    role: str | None = None
    message: int | None = None
    trained: bool | None = None
    weight: float | None = None


def without_message(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a `Piece`, without those of a message if it tells none."""
    if fields.get("role") is not None:
        return fields
    return {name: fields[name] for name in fields if name not in _OF_MESSAGE}


def _known(place: Any) -> Iterator[tuple[str, str]]:
    """Yields the fields of a place that are known; of several pieces, some."""
    for field in dataclasses.fields(place):
        found = getattr(place, field.name)
        if isinstance(found, tuple) and dataclasses.is_dataclass(next(iter(found), 0)):
            for number, one in enumerate(found[:_PIECES_SHOWN]):
                facts = ", ".join(f"{name} {text}" for name, text in _known(one))
                yield f"{field.name}[{number}]", facts
            if len(found) > _PIECES_SHOWN:
                yield "", f"and {len(found) - _PIECES_SHOWN:,} more {field.name}"
        elif found is not False and found not in (None, ()):
            yield field.name, str(found)
