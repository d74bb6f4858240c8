"""The documents of packed rows that were made of places in source files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gristmill.dataset.base.errors import InputError
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.loader.provenance.find_document import documents_of
from gristmill.loader.provenance.packed_shard import PackedShard
from gristmill.pipelines.removal.find_places import Place
from gristmill.pipelines.text.source_details import line_offset


def find_documents(
    dataset: Dataset, places: Sequence[Place]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields where the documents begin that were made of places.

    It reads the segment index of each shard that has some, and a row for each document.
    Those that were removed, or have no token, are left out.

    Args:
        dataset: The dataset, whose records are packed rows.
        places: The places. That of a shard of the dataset itself is the number of a
            document among those of the shard.

    Yields:
        The number of a place; the row in which a document begins, and the number of its
        piece there.
    """
    shards = {path: number for number, path in enumerate(shards_of(dataset).paths)}
    for number, place in enumerate(places):
        if place.path in shards and not place.is_line:
            shard = PackedShard(dataset, shards[place.path])
            known = range(shard.segments.documents)
            found = [
                (shard, shard.info.first_record, document)
                for document in known[place.number : place.number + 1]
            ]
        else:
            at: int | None = place.number
            if place.is_line:
                at = _line_offset(dataset, place)
            found = [] if at is None else [*documents_of(dataset, place.path, at)]
        for shard, first_record, document in found:
            pieces = shard.segments.pieces_of(document)
            if not len(pieces.rows):
                continue  # It has no token.
            row, piece = int(pieces.rows[0]), int(pieces.numbers[0])
            if not shard.pieces(row).removed[piece]:
                yield number, (first_record + row, piece)


def _line_offset(dataset: Dataset, place: Place) -> int | None:
    try:
        return line_offset([dataset], place.path, place.number)
    except InputError:
        return None  # Not a file of the dataset, or not so many lines.
