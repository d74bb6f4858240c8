"""What a checkpoint keeps of a feed, and whether it is of the feed's own order.

The state is the step, and all that decides which records are in which row. How many
hosts and workers there are is no part of it, for the order does not depend on that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gristmill.dataset.errors import (
    FormatVersionError,
    InputError,
    StateMismatchError,
)
from gristmill.loader.batches import Batches
from gristmill.loader.indices import checked_count
from gristmill.loader.order.mixture import Mixture, Phase

STATE_VERSION = 1


def state_of(batches: Batches, step: int) -> dict[str, Any]:
    """Returns the state of feeds that give `step` next, as JSON values."""
    schedule = batches.schedule
    mixture = schedule.mixture
    return {
        "version": STATE_VERSION,
        "step": step,
        "batch_size": schedule.batch_size,
        "drop_remainder": schedule.drop_remainder,
        "datasets": [
            {
                "name": order.name,
                "records": order.num_records,
                "records_digest": dataset.records_digest,
                "order_digest": dataset.order_digest,
                "seed": order.seed,
                "shuffle": order.shuffle.to_state(),
                "epochs": order.epochs,
            }
            for order, dataset in zip(schedule.orders, batches.datasets, strict=True)
        ],
        "mixture": None if mixture is None else mixture.to_state(),
    }


def step_of(state: Mapping[str, Any], batches: Batches) -> int:
    """Returns the step that a state of these batches gives next.

    A mixture may have got other weights at that step, or be about to get them later;
    before it, they must be those of the state.

    Raises:
        FormatVersionError: Another version wrote the state.
        StateMismatchError: It is of other datasets or of another order.
        InputError: It is no state.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise no_state(state)
    if state["version"] != STATE_VERSION:
        raise FormatVersionError(
            "the state of a feed is of another version",
            expected=STATE_VERSION,
            got=state["version"],
            cure="resume with the gristmill that wrote it",
        )
    own = state_of(batches, step=0)
    differences = [
        (name, expected, got)
        for name, expected, got in _differences(own, state)
        if not name.startswith(("step", "mixture"))
    ]
    if differences:
        raise StateMismatchError(
            "the state is of other records, or of another order, than this feed",
            where=", ".join(name for name, _, _ in differences),
            expected=", ".join(f"{name} {ours!r}" for name, ours, _ in differences),
            got=", ".join(f"{name} {theirs!r}" for name, _, theirs in differences),
            cure="make the batches as in the run that wrote the state, or start anew "
            "without it",
        )
    step = checked_count(state["step"], what="step of the state", least=0)
    if batches.schedule.mixture is not None:
        phases = Mixture.from_state(state["mixture"]).phases
        _check_mixture(batches, batches.schedule.mixture.phases, phases, step)
    return step


def no_state(found: object) -> InputError:
    """Returns the error about what is given in place of a state."""
    return InputError(
        "not the state of a feed",
        expected="what get_state of a feed returned",
        got=f"{found!r:.200}",
        cure="give the state whole, as it was saved with the checkpoint",
    )


def _differences(
    own: Any, other: Any, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields the name and both values of whatever differs."""
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        for key in [*own, *(key for key in other if key not in own)]:
            below = f"{name}.{key}" if name else str(key)
            yield from _differences(own.get(key), other.get(key), below)
    elif isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for number, (ours, theirs) in enumerate(zip(own, other, strict=True)):
            part = isinstance(ours, Mapping) and ours.get("name")
            yield from _differences(ours, theirs, f"{name}[{part or number}]")
    elif own != other:
        yield name, own, other


def _check_mixture(
    batches: Batches, own: tuple[Phase, ...], other: tuple[Phase, ...], step: int
) -> None:
    same = 0
    while own[same : same + 1] == other[same : same + 1] != ():
        same += 1
    rest, other_rest = own[same:], other[same:]
    if not rest and not other_rest:
        return
    # Weights may change from the step on; what the state knew of later is replaced.
    limit = step * batches.batch_size
    latest = other_rest[0].from_position if other_rest else rest[0].from_position
    if rest and limit <= rest[0].from_position <= latest:
        return
    names = batches.names
    raise StateMismatchError(
        "the state is of a mixture with other weights",
        expected=_in_words(own, names, batches.batch_size),
        got=_in_words(other, names, batches.batch_size),
        cure="give the weights as in the run that wrote the state, changes included; "
        f"for other weights from here on: with_weights(..., step={step})",
    )


def _in_words(phases: Any, names: tuple[str, ...], batch_size: int) -> str:
    return "; ".join(
        f"from step {phase.from_position // batch_size:,} "
        + ", ".join(f"{name} {w}" for name, w in zip(names, phase.weights, strict=True))
        for phase in phases
    )
