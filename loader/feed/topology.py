"""Which of the hosts this is: given by the caller, never guessed."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from gristmill.dataset.errors import InputError

Topology: TypeAlias = Literal["jax"]


class Host(TypedDict):
    """Number of a host, from 0, and of all hosts."""

    process_index: int
    process_count: int


def host_of(
    process_index: int | None, process_count: int | None, topology: Topology | None
) -> Host:
    """Returns the host that was given, or that of JAX's process.

    Raises:
        InputError: The host is not given, or only in part, or twice.
    """
    got = f"process_index={process_index}, process_count={process_count}, "
    got += f"topology={topology!r}"
    if topology not in (None, "jax"):
        raise InputError("unknown topology", expected="'jax', or none", got=got)
    if topology == "jax" and process_index is None and process_count is None:
        import jax

        return Host(
            process_index=jax.process_index(), process_count=jax.process_count()
        )
    if topology is None and process_index is not None and process_count is not None:
        return Host(process_index=process_index, process_count=process_count)
    raise InputError(
        "the host of the feed is not given, only in part, or twice",
        expected='process_index and process_count, or topology="jax"',
        got=got,
        cure="on a single host: process_index=0, process_count=1",
    )
