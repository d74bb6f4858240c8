"""The origin of a row of a global batch, down to the byte of its source file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import checked_count
from gristmill.loader.data.batches import Batches, row_at
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.stored_sources import (
    PackedShard,
    StoredSources,
    packed_of,
    stored_sources,
)

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
        rows = [*_known(self)]
        width = max((len(head) for head, _ in rows), default=0)
        lines = (f"  {head:{width}}  {text}" for head, text in rows)
        return "\n".join([type(self).__name__, *lines])


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Location(SourcePlace):
    """Where a row of a global batch comes from.

    A packed row has `pieces`, each with a source of its own.

    Attributes:
        epoch: The epoch of its dataset in which the record is seen here.
        dataset: The dataset's name in a mixture, its path otherwise.
        record: Number of the record in the dataset.
        shard: The file that holds it.
        record_in_shard: Its number in that file.
        offset_bytes: Offset in that file of the chunk that holds the record.
        pieces: The pieces of documents in a packed row, in its order.
    """

    epoch: int
    dataset: str
    record: int
    shard: str
    record_in_shard: int
    offset_bytes: int
    pieces: tuple[Piece, ...] = ()


def locate(batches: Batches, step: int, row: int, token: int | None = None) -> Location:
    """Returns the origin of a row of a step's global batch.

    With a token of a packed row, `pieces` is the one that has it; none has padding.

    It reads the index of the shard; of a packed row, the segment index and the index of
    the shard, and the row. Of source files it reads tars alone, if they are there, for
    the name of the sample.
    """
    rows = len(batches.schedule.positions(step))
    row = checked_count(row, what="row", least=0, most=rows - 1)
    seen = row_at(batches, step, row)
    name = seen.name if batches.names else None
    return locate_record(
        seen.dataset, seen.record, epoch=seen.epoch, name=name, token=token
    )


def locate_record(
    dataset: Dataset,
    record: int,
    *,
    epoch: int = 0,
    name: str | None = None,
    token: int | None = None,
) -> Location:
    """Returns the origin of a record of a dataset, as `locate` does.

    Args:
        dataset: The dataset.
        record: Its number there.
        epoch: The epoch to tell.
        name: The dataset's name in a mixture.
        token: Only the piece of a packed row that has this token.
    """
    (shard,), (row,) = map(np.ndarray.tolist, dataset.find([record]))
    part, number = dataset.part_of(shard)
    path = part.shard(number).path
    packed, sources = packed_of(part, number), stored_sources(part, number)
    if token is not None and packed is None:
        raise InputError(
            "the row has no tokens: it is not packed",
            where=path,
            got=f"token {token}",
            cure="leave the token out",
        )
    if token is not None and packed is not None:
        token = checked_count(token, what="token", least=0, most=packed.length - 1)
    if packed is None:
        fields = _fields(sources, row)
    else:
        pieces = PackedShard(part, number).pieces(row)
        fields = {
            "pieces": tuple(
                Piece(
                    begin_token=begin,
                    end_token=end,
                    document=document,
                    first_token=first,
                    **({} if token is None else pieces.said(at, token)),
                    **_fields(sources, document),
                )
                for at, (document, first, begin, end) in enumerate(
                    zip(*map(np.ndarray.tolist, pieces[:4]), strict=True)
                )
                if token is None or begin <= token < end
            )
        }
    return Location(
        epoch=epoch,
        dataset=part.path if name is None else name,
        record=record,
        shard=path,
        record_in_shard=row,
        offset_bytes=dataset.offset_bytes(record),
        **fields,
    )


def _fields(sources: StoredSources | str, record: int) -> dict[str, Any]:
    """Returns the known source of a record or document: fields of `SourcePlace`."""
    if isinstance(sources, str):
        return {"source_note": sources}
    return sources.fields(record)
