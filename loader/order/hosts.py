"""The rows of a batch that each host takes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.lazy_names import packages_named
from gristmill.loader.base.indices import IntArray, checked_count


class Sharding(Protocol):
    """A sharding of JAX."""

    def addressable_devices_indices_map(
        self, shape: tuple[int, ...], /
    ) -> Mapping[Any, Any]:
        """Returns the part of an array that each device of this process holds."""


Host: TypeAlias = Literal["jax"] | tuple[int, int] | Sharding
"""This host: JAX's process, `(index, count)`, or the sharding of the batch."""


def checked_host(host: Host | None) -> tuple[int, int] | Sharding:
    """Returns the index of a host and their number, or the sharding of the batch.

    Raises:
        InputError: It is none of the ways to name a host.
    """
    if isinstance(host, str) and host == "jax":
        with packages_named():
            import jax

        return jax.process_index(), jax.process_count()
    if isinstance(host, tuple) and len(host) == 2:
        count = checked_count(host[1], what="number of hosts")
        index = checked_count(
            host[0], what="index of the host", least=0, most=count - 1
        )
        return index, count
    if host is not None and hasattr(host, "addressable_devices_indices_map"):
        sharding: Sharding = host
        return sharding
    raise InputError(
        "it is not said which host this is"
        if host is None
        else "the host of the feed is not known",
        expected='"jax", the sharding of the batch, or (index, number of hosts)',
        got=f"host={host!r:.100}",
        cure="on a single host: host=(0, 1)",
    )


def host_rows(batch_size: int, host: tuple[int, int] | Sharding) -> slice | IntArray:
    """Returns the rows that one host takes of a batch.

    For a sharding, these are the rows that devices of this process hold, sorted.

    Raises:
        InputError: The batch does not divide among the hosts, or among the devices; or
            the sharding has no device of this process.
    """
    if not isinstance(host, tuple):
        return _rows_of_devices(host, batch_size)
    index, count = host
    rows, left = divmod(batch_size, count)
    if left:
        sizes = [n * count for n in (rows, rows + 1) if n]
        raise InputError(
            "the global batch does not divide among the hosts",
            expected=f"a multiple of {count:,} rows",
            got=f"{batch_size:,} rows for {count:,} hosts",
            cure=f"choose batch_size {' or '.join(f'{n:,}' for n in sizes)}, or run a "
            f"number of hosts that divides {batch_size:,}",
        )
    return slice(index * rows, (index + 1) * rows)


def _rows_of_devices(sharding: Any, batch_size: int) -> IntArray:
    from jax.sharding import NamedSharding, PartitionSpec

    if isinstance(sharding, NamedSharding):
        # Arrays may have any rank: only the first axis matters.
        spec = PartitionSpec(*sharding.spec[:1])
        sharding = NamedSharding(sharding.mesh, spec)
    return rows_held(sharding, (batch_size,), "the global batch")


@functools.lru_cache(maxsize=256)
def rows_held(sharding: Sharding, shape: tuple[int, ...], where: str) -> IntArray:
    """Returns the rows of a global array that this process's devices hold, sorted."""
    try:
        slices = sharding.addressable_devices_indices_map(shape).values()
    except (IndexError, ValueError) as e:  # JAX's, for an axis that is not there
        raise InputError(
            "the array does not divide among the devices of its sharding",
            where=where,
            expected=str(sharding),
            got=f"global shape {shape}: {e}",
            cure="choose a batch_size that the devices along the batch axis divide, "
            "and no more axes in the sharding than the array has",
        ) from e
    if not slices:
        raise InputError(
            "the sharding has no device of this process",
            where=where,
            cure="make a mesh with devices of every process that reads",
        )
    spans = {index[0].indices(shape[0]) for index in slices if index is not None}
    held = np.unique(np.concatenate([np.arange(*span) for span in spans]))
    held.flags.writeable = False  # Callers share it.
    return held.astype(np.int64, copy=False)
