"""The origin of a row of a global batch, down to the byte of its source file."""

from __future__ import annotations

import dataclasses

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.loader.base.indices import checked_count
from gristmill.loader.data.batches import Batches, row_at
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.packed_shard import PackedShard, packed_of
from gristmill.loader.provenance.source_fields import Piece, SourcePlace
from gristmill.loader.provenance.stored_sources import source_fields, stored_sources


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
    shards, in_shard = dataset.find([record])
    part, number = dataset.part_of(int(shards[0]))
    info = part.shard(number)
    row_in_shard = int(in_shard[0])
    packed = packed_of(part, info)
    if token is not None:
        token = _checked_token(token, packed, info.path)
    if packed is None:
        fields = source_fields(stored_sources(part, number), row_in_shard)
    else:
        opened = PackedShard(part, number)
        fields = {"pieces": pieces_of(part, opened, row_in_shard, token)}
    return Location(
        epoch=epoch,
        dataset=part.path if name is None else name,
        record=record,
        shard=info.path,
        record_in_shard=row_in_shard,
        offset_bytes=dataset.offset_bytes(record),
        **fields,
    )


def _checked_token(token: int, packed: PackedSplit | None, shard: str) -> int:
    if packed is None:
        raise InputError(
            "the row has no tokens: it is not packed",
            where=shard,
            got=f"token {token}",
            cure="leave the token out",
        )
    return checked_count(token, what="token", least=0, most=packed.length - 1)


def pieces_of(
    dataset: Dataset, shard: PackedShard, row: int, token: int | None = None
) -> tuple[Piece, ...]:
    """Returns the pieces of a row of a shard, or the one that has a token of the row.

    Args:
        dataset: One that is not joined of others.
        shard: The shard.
        row: Its row.
        token: Number of the token in the row; none of the pieces has padding.
    """
    pieces = shard.pieces(row)
    sources = stored_sources(dataset, shard.number)
    return tuple(
        Piece(
            begin_token=begin,
            end_token=end,
            document=document,
            first_token=first,
            **({} if token is None else pieces.said(number, token)),
            **source_fields(sources, document),
        )
        for number, (document, first, begin, end) in enumerate(
            zip(*map(np.ndarray.tolist, pieces[:4]), strict=True)
        )
        if token is None or begin <= token < end
    )
