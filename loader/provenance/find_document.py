"""The rows in which the documents of a place of a source file are seen."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata.sources import SourceFile, read_sources
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


class _Search:
    """A search of datasets for what was made of a place of a source file."""

    def __init__(self, path: str, place: int):
        self._path = path
        self._place = checked_count(place, what="place", least=0)
        self._known: list[Sequence[SourceFile]] = []
        self._near: list[int] = []
        self.searched = 0

    def of(
        self, whole: Dataset, *, packed: bool = False
    ) -> Iterator[tuple[Dataset, str, int, list[tuple[int, int, int, int]]]]:
        """Yields the part, the shard and the number of each, and its pieces.

        A piece is a record of the dataset, and its tokens there, if rows are packed;
        there are none of what is not among the selected. With `packed`, only of packed
        rows.
        """
        first = 0
        for part in whole.parts:
            begin, table = 0, table_of(part)
            for split in part.committed.parts if part.committed and table else ():
                shards = range(begin, begin + split.shards)
                begin = shards.stop
                if table is None or (packed and split.packed is None):
                    continue
                self.searched += 1
                self._known.append(read_sources(part.path, split) or ())
                wanted = [(self._path, self._place)]
                for _, number, document in find_places(
                    part.path, split, table, shards, wanted, self._near
                ):
                    pieces = [(document, 0, 0, 0)]
                    if split.packed is not None:
                        pieces = PackedShard(part, number).document(document)
                    shard = part.shard(number)
                    rows = np.array([row for row, *_ in pieces], np.int64)
                    stored = rows + first + shard.first_record
                    here, later = map(whole.numbers_here, (stored, stored + 1))
                    found = [
                        (record, *piece[1:])
                        for record, after, piece in zip(
                            here.tolist(), later.tolist(), pieces, strict=True
                        )
                        if record != after
                    ]
                    yield part, shard.path, document, found
            first += len(part)

    def nothing(self) -> InputError:
        """Returns the error that nothing was made of the place."""
        path, place = self._path, self._place
        paths = sorted({file.path for files in self._known for file in files})
        if path not in paths:
            name = path.rpartition("/")[2]
            alike = [other for other in paths if other.rpartition("/")[2] == name]
            return InputError(
                "no rows were made of such a file",
                expected=some_of(alike or paths, _SHOWN_FILES)
                or "a list of input files",
                got=path,
                cure="give the file as the conversion was given it, as trace shows it",
            )
        below = max((one for one in self._near if one < place), default=None)
        above = min((one for one in self._near if one > place), default=None)
        places = [f"{one:,}" for one in (below, above) if one is not None]
        return InputError(
            "no document begins there",
            where=path,
            expected="the nearest begin at " + " and ".join(places)
            if places
            else "a place in the file that has a record",
            got=f"{place:,}",
            cure="give a place as trace shows it; the record may have been left out by "
            "a function or set aside",
        )


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
    search, found = _Search(path, place), []
    numbers = [*range(len(batches.datasets))]
    if dataset is not None:
        numbers = dataset_numbers(batches, dataset)[::-1]
    for number in numbers:
        sightings = functools.partial(
            batches.schedule.find,
            dataset=number,
            first_epoch=first_epoch,
            stop_epoch=stop_epoch,
        )
        for part, shard, document, pieces in search.of(
            batches.datasets[number], packed=True
        ):
            found.append(
                FoundDocument(
                    dataset=batches.names[number] if batches.names else part.path,
                    shard=shard,
                    document=document,
                    pieces=tuple(
                        DocumentPiece(
                            record=record,
                            begin_token=begin,
                            end_token=end,
                            first_token=first,
                            sightings=tuple(sightings(record)),
                        )
                        for record, begin, end, first in pieces
                    ),
                )
            )
    if not search.searched:
        raise InputError(
            "the rows are not packed: no document is in several of them",
            where=repr(batches),
            cure="give the number of the record, to find(record) or as --records",
        )
    if not found:
        raise search.nothing()
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
    search = _Search(path, place)
    found = [pieces for *_, pieces in search.of(dataset)]
    if not found:
        raise search.nothing()
    return sorted({record for pieces in found for record, *_ in pieces})
