"""Several datasets, one after the other, as one dataset."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.dataset.base.errors import InputError
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.loader.reading.batch_reader import BatchReader, Verify
from gristmill.loader.reading.joined_shards import JoinedShards
from gristmill.loader.remote.read_options import ReadOptions


def join_datasets(
    parts: Sequence[Dataset],
    *,
    verify: Verify | None,
    read_options: ReadOptions | None,
) -> Dataset:
    """Returns the records of datasets, one or more, as one dataset.

    Raises:
        InputError: One of them is there twice, or only some are in a bucket; or one is
            an earlier edition that is not kept.
    """
    places = [(part.path, part.split) for part in parts]
    for number, place in enumerate(places):
        if place[1] is not None and place in places[:number]:
            raise InputError(
                "a split is joined with itself, so that its records are there twice",
                where=f"{place[0]}, split {place[1]}",
                cure="name each split once; to see records more often, make a mixture "
                "with weights, or more epochs",
            )
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        if part.order_digest is None:
            raise InputError(
                "an edition that is not kept is joined",
                where=repr(part),
                expected="editions of which all records are there",
                got=f"edition {part.edition}, of which some were removed",
                cure="join the newest editions",
            )
    shards = JoinedShards.of(list(map(shards_of, parts)))
    return Dataset(
        path=parts[0].path,
        reader=BatchReader(shards, verify=verify, read_options=read_options),
        recipe=lambda dataset: (_join_again, (dataset.parts, verify, read_options)),
        parts=parts,
    )


def _join_again(
    parts: Sequence[Dataset], verify: Verify | None, read_options: ReadOptions | None
) -> Dataset:
    return join_datasets(parts, verify=verify, read_options=read_options)
