"""Batches of one size: a last one that is not full gets rows of zeros, and a mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.loader.order.schedule import RowsBySize, Schedule

BoolArray = npt.NDArray[np.bool_]


def rows_there(schedule: Schedule, step: int, rows: RowsBySize) -> BoolArray:
    """Returns a host's rows of a step's batch: all, except in a last short one."""
    full, first = schedule.sizes.size(step), schedule.sizes.start(step)
    if isinstance(rows, Mapping):
        rows = rows[full]
    elif callable(rows):
        rows = rows(full)
    there: BoolArray = (np.arange(full) < schedule.stop - first)[rows]
    return there


def filled_up(batch: Any, there: BoolArray, *, mask: str) -> dict[str, Any]:
    """Returns a batch with zeros for the rows that are not there, and their mask.

    Args:
        batch: The decoded rows that exist; if there is none, for one of another host,
            which only tells the types and shapes.
        there: Which rows are there, bool [rows].
        mask: The name that `there` gets in the batch.

    Raises:
        InputError: The batch is not a dict of arrays with one row for each record, or
            has that name already.
    """
    if not isinstance(batch, Mapping) or mask in batch:
        raise InputError(
            "decode did not return a dict that a mask can be added to",
            expected=f"a dict of arrays, without {mask!r}",
            got=f"a dict with {mask!r}" if isinstance(batch, Mapping) else _kind(batch),
            cure="let decode return a dict of arrays, or choose another name as mask",
        )
    filled = {name: _filled(part, there, str(name)) for name, part in batch.items()}
    return filled | {mask: there}


def _filled(part: Any, there: BoolArray, where: str) -> Any:
    if isinstance(part, Mapping):
        return {
            name: _filled(inner, there, f"{where}.{name}")
            for name, inner in part.items()
        }
    rows = max(int(there.sum()), 1)
    if not isinstance(part, np.ndarray) or not part.ndim or len(part) != rows:
        raise InputError(
            "decode returned what cannot be filled up with rows of zeros",
            where=where,
            expected=f"a numpy array with a row for each record, {rows:,}",
            got=_kind(part),
            cure="let decode return arrays with the records along the first axis, such "
            "as a PaddedFeature instead of a RaggedFeature",
        )
    if there.any() and there.all():
        return part
    fill = b"" if part.dtype == object else 0
    out = np.full((len(there), *part.shape[1:]), fill, part.dtype)
    if there.any():
        out[there] = part
    return out


def _kind(part: Any) -> str:
    if isinstance(part, np.ndarray):
        return f"an array of shape {part.shape}"
    return type(part).__name__
