"""Which of the hosts this is: said by the caller, never guessed."""

from __future__ import annotations

from typing import TypedDict

from gristmill.dataset.errors import InputError


class Host(TypedDict):
    """Number of a host, from 0, and of all hosts."""

    process_index: int
    process_count: int


def host_of(
    process_index: int | None, process_count: int | None, topology: str | None
) -> Host:
    """Returns the host that was said, or that JAX says.

    Raises:
        InputError: Nothing was said, or half of it, or twice.
    """
    given = process_index is not None, process_count is not None
    if topology == "jax" and not any(given):
        import jax

        return Host(
            process_index=jax.process_index(), process_count=jax.process_count()
        )
    if topology is None and process_index is not None and process_count is not None:
        return Host(process_index=process_index, process_count=process_count)
    raise InputError(
        "the feed is not told which host it is on"
        if not any(given) and topology is None
        else "the feed is told only half, or twice, which host it is on",
        expected='process_index and process_count, or topology="jax"',
        got=f"process_index={process_index}, process_count={process_count}, "
        f"topology={topology!r}",
        cure="on a single host: process_index=0, process_count=1",
    )
