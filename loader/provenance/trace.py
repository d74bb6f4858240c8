"""The origin of a row, down to the byte of its source file, and back.

To trace a row is a look-up of stored places; its inverse is a search in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata.sources import read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.base.indices import checked_count
from gristmill.loader.data.batches import Batches, dataset_numbers, row_at
from gristmill.loader.data.dataset import Dataset, Stored
from gristmill.loader.order.schedule import Sighting
from gristmill.loader.provenance.stored_sources import (
    PackedShard,
    StoredSources,
    find_places,
    packed_of,
    stored_sources,
)

_SHOWN_FILES = 3
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
    """A piece of a document in a packed row, and the origin of the document.

    Attributes:
        begin_token: Its first token in the row.
        end_token: The token of the row after its last.
        document: The number of the document among those of its shard.
        first_token: The number, in the document, of the piece's first token: above 0
            where a document was cut.
        role: Role of the requested token of a conversation: one of `ROLES`, or
            "template". None without a requested token, and in other rows.
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
    """Returns the fields of a `Piece`, without those of a message if it has no role."""
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
    """The origin of a row of a global batch.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentPiece:
    """A piece of a document: its row, and the steps that show it.

    Attributes:
        record: Number of the row among the records of the dataset.
        begin_token: The piece's first token in the row.
        end_token: The token of the row after its last.
        first_token: The number, in the document, of the piece's first token.
        sightings: The steps and rows of global batches in which it is seen.
    """

    record: int
    begin_token: int
    end_token: int
    first_token: int
    sightings: tuple[Sighting, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundDocument:
    """A document of packed rows that was found by its source.

    Attributes:
        dataset: The dataset's name in a mixture, its path otherwise.
        shard: The file that has its rows.
        document: Its number among the documents of the shard.
        pieces: Its pieces, in the order of its tokens; none if it has no token.
    """

    dataset: str
    shard: str
    document: int
    pieces: tuple[DocumentPiece, ...]


def locate(batches: Batches, step: int, row: int, token: int | None = None) -> Location:
    """Returns the origin of a row of a step's global batch; see `GlobalBatches.locate`.

    It reads the shard's index; for a packed row also the segment index and the row. Of
    source files it reads only tars, if they are there, for the name of the sample.
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
        epoch: The epoch to report.
        name: The dataset's name in a mixture.
        token: Only the piece of a packed row that has this token.
    """
    (shard,), (row,) = map(np.ndarray.tolist, dataset.find([record]))
    part, number = dataset.stored.part_of(shard)
    path = dataset.shard(shard).path
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
        pieces = PackedShard(dataset.stored, shard).pieces(row)
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
        offset_bytes=dataset.stored.offset_bytes(record),
        **fields,
    )


def _fields(sources: StoredSources | str, record: int) -> dict[str, Any]:
    """Returns the known source of a record or document: fields of `SourcePlace`."""
    if isinstance(sources, str):
        return {"source_note": sources}
    return sources.fields(record)


def find_document(
    batches: Batches,
    path: str,
    place: int,
    dataset: str | None = None,
    *,
    first_epoch: int = 0,
    stop_epoch: int | None = None,
) -> list[FoundDocument]:
    """Returns the documents that were made from a record of a source file.

    See `GlobalBatches.find_document`. It reads the segment index of each shard that has
    one of them, the shard's index, and one row for a document that is not cut.
    """
    numbers = [*range(len(batches.datasets))]
    if dataset is not None:
        numbers = dataset_numbers(batches, dataset)[::-1]
    searched = [batches.datasets[number].stored for number in numbers]
    if not any(one.packed for stored in searched for one in _editions(stored)):
        raise InputError(
            "the rows are not packed: no document is in several of them",
            where=repr(batches),
            cure="give the number of the record, to find(record) or as --records",
        )
    found = []
    for number, one in _made_of(searched, path, place, packed=True):
        pieces = []
        for piece in one.pieces:
            seen = batches.schedule.find(
                piece.record,
                dataset=numbers[number],
                first_epoch=first_epoch,
                stop_epoch=stop_epoch,
            )
            pieces.append(dataclasses.replace(piece, sightings=tuple(seen)))
        name = batches.names[numbers[number]] if batches.names else one.dataset
        found.append(dataclasses.replace(one, dataset=name, pieces=tuple(pieces)))
    return found


def find_records(dataset: Dataset, path: str, place: int) -> list[int]:
    """Returns the records or packed rows that were made from a place of a source file.

    There are none for a document without tokens, or one that is not selected.

    Args:
        dataset: Where to look.
        path: As in `find_document`.
        place: The same.

    Raises:
        InputError: There is no such file, or no document begins there.
    """
    found = _made_of([dataset.stored], path, place)
    return sorted({piece.record for _, one in found for piece in one.pieces})


def _editions(stored: Stored) -> list[Split]:
    return [split for part in stored.parts for split in part.editions]


def _made_of(
    searched: Sequence[Stored], path: str, place: int, *, packed: bool = False
) -> list[tuple[int, FoundDocument]]:
    """Returns the records and documents of a place, with the number of a dataset.

    Their pieces have no sightings; a record that is not packed is one, without tokens.
    Records that are not selected are in no piece. With `packed`, it searches only
    packed rows. It raises InputError if none is found.
    """
    place = checked_count(place, what="place", least=0)
    found: list[tuple[int, FoundDocument]] = []
    known: set[str] = set()
    near: list[int] = []
    for number, stored in enumerate(searched):
        before = 0
        for part in stored.parts:
            for split, shards in part.shards_of_editions():
                if packed and split.packed is None:
                    continue
                files = read_sources(part.path, split) or ()
                known |= {file.path for file in files}
                for _, shard, own in find_places(
                    part, split, shards, [(path, place)], near
                ):
                    made = FoundDocument(
                        dataset=part.path,
                        shard=stored.shards.path(before + shard),
                        document=own,
                        pieces=tuple(_pieces(stored, before + shard, split, own)),
                    )
                    found.append((number, made))
            before += len(part.shards)
    if found:
        return found
    if path not in known:
        name = path.rpartition("/")[2]
        alike = [other for other in known if other.rpartition("/")[2] == name]
        shown = some_of(sorted(alike or known), _SHOWN_FILES)
        raise InputError(
            "no rows were made of such a file",
            expected=shown or "a list of input files",
            got=path,
            cure="give the file as the conversion was given it, as trace shows it",
        )
    below = max((one for one in near if one < place), default=None)
    above = min((one for one in near if one > place), default=None)
    places = [f"{one:,}" for one in (below, above) if one is not None]
    raise InputError(
        "no document begins there",
        where=path,
        expected="the nearest begin at " + " and ".join(places)
        if places
        else "a place in the file that has a record",
        got=f"{place:,}",
        cure="give a place as trace shows it; the record may have been left out by a "
        "function or set aside",
    )


def _pieces(
    stored: Stored, shard: int, split: Split, number: int
) -> Iterator[DocumentPiece]:
    """Yields the pieces of a record or document that are selected."""
    pieces = [(number, 0, 0, 0)]
    if split.packed is not None:
        pieces = PackedShard(stored, shard).document(number)
    rows = np.array([row for row, *_ in pieces], np.int64)
    rows += stored.shards.first_record(shard)
    here, later = map(stored.counts_before, (rows, rows + 1))
    counted = zip(here.tolist(), later.tolist(), pieces, strict=True)
    for record, end_record, (_, begin, end, first) in counted:
        if record != end_record:
            yield DocumentPiece(
                record=record, begin_token=begin, end_token=end, first_token=first
            )
