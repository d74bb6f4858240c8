"""The rows in which the documents of a place of a source file are seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata.sources import SourceFile, read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.base.indices import checked_count
from gristmill.loader.data.batches import Batches, dataset_numbers
from gristmill.loader.data.dataset import Dataset, table_of
from gristmill.loader.order.schedule import Sighting
from gristmill.loader.provenance.stored_sources import PackedShard, find_places

_SHOWN_FILES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentPiece:
    """A piece of a document: its row, and where that row is seen.

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
    sightings: tuple[Sighting, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FoundDocument:
    """A document of packed rows, by the place that it comes from.

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


class _Edition(NamedTuple):
    """An edition of a dataset."""

    name: str  # Of the dataset, as `FoundDocument` has it.
    number: int  # Of the dataset in the batches.
    first_record: int  # Of the part in that dataset.
    part: Dataset
    split: Split
    shards: range


def find_document(
    batches: Batches,
    path: str,
    place: int,
    dataset: str | None = None,
    *,
    first_epoch: int = 0,
    stop_epoch: int | None = None,
) -> list[FoundDocument]:
    """Returns the documents that were made of a record of a source file.

    It reads the segment index of each shard that has one of them, the shard's index,
    and one row for a document that is not cut.

    Args:
        batches: Where to look.
        path: The file, as it was given to the conversion.
        place: The record's place there: a byte offset, or the number of a row or
            record, as `Piece` has it.
        dataset: Name of a dataset of a mixture; by default all are searched.
        first_epoch: First epoch of a dataset to look in for its rows.
        stop_epoch: First epoch not to look in. None for all, if there is an end.

    Returns:
        Several if a function made several documents of the record, or if the file is in
        several datasets or editions.

    Raises:
        InputError: There is no such file, no document begins there, or the rows are
            not packed.
    """
    place = checked_count(place, what="place", least=0)
    editions = list(_editions(batches, dataset))
    if not editions:
        raise InputError(
            "the rows are not packed: no document is in several of them",
            where=repr(batches),
            cure="give the number of the record, to find(record) or as --records",
        )
    near: list[int] = []
    found = [
        _found(
            *(batches, edition, PackedShard(edition.part, shard), document),
            *(first_epoch, stop_epoch),
        )
        for edition in editions
        if (table := table_of(edition.part)) is not None
        for _, shard, document in find_places(
            *(edition.part.path, edition.split, table, edition.shards),
            *([(path, place)], near),
        )
    ]
    if not found:
        known = [read_sources(one.part.path, one.split) or () for one in editions]
        raise _not_found(path, place, known, near)
    return found


def find_records(dataset: Dataset, path: str, place: int) -> list[int]:
    """Returns the records, or packed rows, that were made of a place of a source file.

    There are none of a document without a token, or if others were selected.

    Args:
        dataset: Where to look.
        path: As in `find_document`.
        place: The same.

    Raises:
        InputError: There is no such file, or no document begins there.
    """
    near: list[int] = []
    stored: list[int] = []
    is_found = False
    editions = list(_editions_of(dataset, 0, None))
    for edition in editions:
        part, split = edition.part, edition.split
        if (table := table_of(part)) is None:
            continue
        places = find_places(
            *(part.path, split, table, edition.shards), [(path, place)], near
        )
        for _, number, document in places:
            is_found = True
            rows = [document]
            if split.packed is not None:
                packed = PackedShard(part, number)
                rows = [piece[0] for piece in placed_pieces(packed, document)]
            first = edition.first_record + part.shard(number).first_record
            stored += [first + row for row in rows]
    if not is_found:
        known = [read_sources(one.part.path, one.split) or () for one in editions]
        raise _not_found(path, place, known, near)
    here = dataset.numbers_here(
        np.array([(n, n + 1) for n in stored], np.int64).ravel()
    )
    pairs = here.reshape(-1, 2).tolist()
    return sorted({record for record, later in pairs if record != later})


def _editions(batches: Batches, dataset: str | None) -> Iterator[_Edition]:
    numbers = [*range(len(batches.datasets))]
    if dataset is not None:
        numbers = dataset_numbers(batches, dataset)[::-1]
    for number in numbers:
        name = batches.names[number] if batches.names else None
        for edition in _editions_of(batches.datasets[number], number, name):
            if edition.split.packed is not None:
                yield edition


def _editions_of(whole: Dataset, number: int, name: str | None) -> Iterator[_Edition]:
    first = 0
    for part in whole.parts:
        shard = 0
        for split in part.committed.parts if part.committed else ():
            shards = range(shard, shard + split.shards)
            named = part.path if name is None else name
            yield _Edition(named, number, first, part, split, shards)
            shard += split.shards
        first += len(part)


def _found(
    batches: Batches,
    edition: _Edition,
    shard: PackedShard,
    document: int,
    first_epoch: int,
    stop_epoch: int | None,
) -> FoundDocument:
    pieces = []
    for row, begin, end, first in placed_pieces(shard, document):
        stored = edition.first_record + shard.info.first_record + row
        dataset = batches.datasets[edition.number]
        record, later = dataset.numbers_here(np.array([stored, stored + 1])).tolist()
        if record == later:
            continue  # It is not among those that were selected.
        sightings = batches.schedule.find(
            record,
            dataset=edition.number,
            first_epoch=first_epoch,
            stop_epoch=stop_epoch,
        )
        pieces.append(
            DocumentPiece(
                record=record,
                begin_token=begin,
                end_token=end,
                first_token=first,
                sightings=tuple(sightings),
            )
        )
    return FoundDocument(
        dataset=edition.name,
        shard=shard.info.path,
        document=document,
        pieces=tuple(pieces),
    )


def placed_pieces(shard: PackedShard, document: int) -> list[tuple[int, int, int, int]]:
    """Returns the row of each piece of a document, its tokens there, and its first.

    A piece that begins its
    row, and is not the last of the document, ends where the next one begins: that row
    is not read.
    """
    found = []
    pieces = shard.segments.pieces_of(document)
    rows, numbers, firsts = map(np.ndarray.tolist, pieces)
    for row, number, first, later in zip(
        rows, numbers, firsts, [*firsts, None][1:], strict=False
    ):
        if number == 0 and later is not None:
            found.append((row, 0, later - first, first))
        else:
            read = shard.pieces(row)
            begin, end = int(read.begins[number]), int(read.ends[number])
            found.append((row, begin, end, first))
    return found


def _not_found(
    path: str,
    place: int,
    known: Sequence[Sequence[SourceFile]],
    near: Sequence[int],
) -> InputError:
    """Returns the error that nothing was made of a place of a file."""
    paths = sorted({file.path for files in known for file in files})
    if path not in paths:
        name = path.rpartition("/")[2]
        alike = [other for other in paths if other.rpartition("/")[2] == name]
        return InputError(
            "no rows were made of such a file",
            expected=some_of(alike or paths, _SHOWN_FILES) or "a list of input files",
            got=path,
            cure="give the file as the conversion was given it, as trace shows it",
        )
    below = max((one for one in near if one < place), default=None)
    above = min((one for one in near if one > place), default=None)
    places = [one for one in (below, above) if one is not None]
    return InputError(
        "no document begins there",
        where=path,
        expected="the nearest begin at " + " and ".join(f"{p:,}" for p in places)
        if places
        else "a place in the file that has a record",
        got=f"{place:,}",
        cure="give a place as trace shows it; the record may have been left out by a "
        "function or set aside",
    )
