"""Checked arguments of a feed: its host, its rows and its mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy.typing as npt

from gristmill.dataset.base.errors import InputError, OutOfRangeError
from gristmill.dataset.base.lazy_names import packages_named
from gristmill.loader.base.indices import IntArray, checked_indices
from gristmill.loader.order.schedule import Schedule

if TYPE_CHECKING:
    from gristmill.loader.feed.step_reads import Decode


def given_rows(
    rows: npt.ArrayLike | Callable[[int], npt.ArrayLike], batch_size: int
) -> IntArray:
    """Returns the rows that a user gave for batches of a size.

    Args:
        rows: Numbers of rows of the global batch [rows of the host], or a function that
            returns them for a batch size.
        batch_size: Rows of the global batch.

    Raises:
        OutOfRangeError: A row is not one of the batch.
        InputError: They are not a list of numbers.
    """
    given = rows(batch_size) if callable(rows) else rows
    try:
        taken = checked_indices(given, stop=batch_size, what="row")
    except OutOfRangeError as e:
        raise OutOfRangeError(
            "the rows are not those of batches of this size",
            expected=f"rows below {batch_size:,}: the batches have batch_size "
            f"{batch_size:,}",
            got=f"row {e.got}",
            cure="make the rows of the size of the batches: loader.rows_of(sharding, "
            f"batch_size={batch_size})",
        ) from e
    if taken.ndim != 1:
        raise InputError(
            "rows are not a list of numbers",
            got=f"{given!r:.100}",
            cure="give the rows that this host reads as one list of integers",
        )
    return taken


def check_mask(mask: str, decode: Decode | None, schedule: Schedule) -> None:
    """Refuses a mask that would have nothing to be added to, or to tell.

    Raises InputError.

    Args:
        mask: Name of the array.
        decode: The decoder of the feed.
        schedule: The steps of the batches.
    """
    if not isinstance(mask, str):
        raise InputError(
            "the mask is not the name of an array",
            expected="a text",
            got=f"mask={mask!r:.100}",
            cure='give a name, such as mask="mask"',
        )
    if decode is None:
        raise InputError(
            "a mask is an array beside others, and the feed makes no arrays",
            got=f"mask={mask!r} without decode",
            cure="give the feed a decode that returns a dict of arrays",
        )
    if schedule.drop_remainder:
        raise InputError(
            "a mask tells the rows that fill up a last batch, and these batches leave "
            "out a last one that is not full",
            got=f"mask={mask!r} with drop_remainder=True",
            cure="make the batches with epochs=1, drop_remainder=False",
        )
    if schedule.steps is None:
        raise InputError(
            "a mask tells the rows that fill up a last batch, and these batches have "
            "no end: an evaluation would count records again and again",
            got=f"mask={mask!r} with epochs=None",
            cure="make the batches with epochs=1, drop_remainder=False",
        )


def host_of(
    process_index: int | None, process_count: int | None, topology: str | None
) -> tuple[int, int]:
    """Returns the host that was given, or that of JAX's process, and their number.

    Raises InputError if none is given, only a part of one, or two.
    """
    got = f"process_index={process_index}, process_count={process_count}, "
    got += f"topology={topology!r}"
    if topology not in (None, "jax"):
        raise InputError(
            "unknown topology",
            expected="'jax', or none",
            got=got,
            cure="give topology='jax', or process_index and process_count",
        )
    if topology == "jax" and process_index is None and process_count is None:
        with packages_named():
            import jax

        return jax.process_index(), jax.process_count()
    if topology is None and process_index is not None and process_count is not None:
        return process_index, process_count
    raise InputError(
        "the host of the feed is not given, only in part, or twice",
        expected='process_index and process_count, or topology="jax"',
        got=got,
        cure="on a single host: process_index=0, process_count=1",
    )
