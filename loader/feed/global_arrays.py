"""Global `jax.Array`s of the rows that each process reads.

Every process reads the rows of the global batch that its own devices hold, and no data
is sent between processes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import IntArray
from gristmill.loader.order.hosts import rows_held


class RowsRead(NamedTuple):
    """Which rows of a global batch a process reads, and how many the batch has."""

    read: IntArray
    batch_size: int


def global_arrays(batch: Any, sharding: Any, rows: RowsRead | None) -> Any:
    """Starts the transfer of a batch, and returns its global arrays.

    Args:
        batch: A pytree of numpy arrays with this process's rows along the first axis.
        sharding: A sharding, or a pytree of shardings that is a prefix of the batch's.
        rows: Which rows these are. None if all processes have equally many, which
            follow each other in the order of the processes.
    """
    named, tree = jax.tree_util.tree_flatten_with_path(batch)
    shardings = _spread(sharding, batch)
    leaves, shapes = [], []
    for (path, leaf), one in zip(named, shardings, strict=True):
        where = f"batch{jax.tree_util.keystr(path)}"
        rows = rows or _rows_in_turn(leaf)
        shapes.append(_global_shape(leaf, one, rows, where))
        leaves.append(leaf)
    if jax.process_count() == 1:
        # One call for all takes half of the time.
        arrays = jax.device_put(leaves, shardings)
    else:
        arrays = [
            jax.make_array_from_process_local_data(one, leaf, shape)
            for one, leaf, shape in zip(shardings, leaves, shapes, strict=True)
        ]
    return jax.tree.unflatten(tree, arrays)


def _rows_in_turn(array: Any) -> RowsRead:
    """Returns the array's rows if processes have equally many, one after the other."""
    count = len(array) if np.ndim(array) else 0
    first = jax.process_index() * count
    read = np.arange(first, first + count, dtype=np.int64)
    return RowsRead(read, jax.process_count() * count)


def _spread(sharding: Any, batch: Any) -> list[Any]:
    """Returns a sharding for each leaf of the batch."""
    if isinstance(sharding, Sharding):
        return [sharding] * len(jax.tree.leaves(batch))
    try:
        spread = jax.tree.map(
            lambda one, part: jax.tree.map(lambda _: one, part), sharding, batch
        )
    except (TypeError, ValueError) as e:
        raise InputError(
            "the tree of shardings does not match the batch",
            expected=f"one sharding, or a tree like {jax.tree.structure(batch)}",
            got=jax.tree.structure(sharding),
            cure="give one sharding for all leaves, or a tree of them as the batch "
            "is one",
        ) from e
    return jax.tree.leaves(spread)


def _global_shape(
    array: Any, sharding: Any, rows: RowsRead, where: str
) -> tuple[int, ...]:
    """Returns the shape of the global array of a leaf, which is checked."""
    _check_array(array, len(rows.read), where)
    if not isinstance(sharding, Sharding):
        raise InputError(
            "not a sharding",
            where=where,
            expected="a jax.sharding.Sharding, such as NamedSharding(mesh, spec)",
            got=repr(sharding),
            cure="give one sharding for all leaves, or a tree of them as the batch "
            "is one",
        )
    shape: tuple[int, ...] = (rows.batch_size, *array.shape[1:])
    held = rows_held(sharding, shape, where)
    if not np.array_equal(held, rows.read):
        raise InputError(
            "the feed reads other rows of the global batch than the devices of this "
            "process hold",
            where=f"{where}, process {jax.process_index()} of {jax.process_count()}",
            expected=f"rows {_rows_text(held)}",
            got=f"rows {_rows_text(rows.read)}",
            cure="let the feed read the rows that the devices hold: "
            "feed(host=sharding)",
        )
    return shape


def _check_array(array: Any, rows: int, where: str) -> None:
    """Refuses arrays that would arrive on the devices with other values."""
    numeric = isinstance(array, np.ndarray) and (
        array.dtype == np.bool_ or jax.numpy.issubdtype(array.dtype, np.number)
    )
    if not numeric:
        kind = type(array).__name__
        if isinstance(array, np.ndarray):
            kind = f"an array of {array.dtype}"
        raise InputError(
            "the batch has a leaf that cannot be sent to a device",
            where=where,
            expected="a numpy array of numbers",
            got=kind,
            cure="give the feed a decode that returns arrays",
        )
    if array.ndim == 0 or len(array) != rows:
        raise InputError(
            "an array of the batch does not have one row for each record",
            where=where,
            expected=f"{rows:,} rows, the first axis",
            got=f"shape {array.shape}",
            cure="let decode return arrays with the records along the first axis; drop "
            "a last batch that is not full: drop_remainder=True",
        )
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and narrow != array.dtype and array.size:
        least, most = int(array.min()), int(array.max())
        limits = np.iinfo(narrow)
        if least < limits.min or most > limits.max:
            raise InputError(
                f"JAX converts {array.dtype} to {narrow}, which is too narrow",
                where=where,
                expected=f"{limits.min} to {limits.max}",
                got=f"{least} to {most}",
                cure="set jax_enable_x64, or let decode return smaller numbers",
            )


def _rows_text(rows: IntArray) -> str:
    """Returns the rows as text: as a range if they are one."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return f"[{rows[0]:,}, {rows[-1] + 1:,})"
    listed = ", ".join(str(row) for row in rows[:8].tolist())
    return f"{listed}{', ...' if len(rows) > 8 else ''} ({len(rows):,} in all)"
