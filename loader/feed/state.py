"""The state of a feed, which a checkpoint keeps, and how it is compared.

The state is the step and everything that determines which records are in which row. The
number of hosts and workers is not part of it, because the order does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gristmill.dataset.errors import (
    FormatVersionError,
    GristmillError,
    InputError,
    StateMismatchError,
)
from gristmill.loader.batches import Batches
from gristmill.loader.dataset import Dataset
from gristmill.loader.indices import checked_count
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.mixture import Mixture, Phase
from gristmill.loader.order.schedule import Schedule
from gristmill.loader.order.shuffle import shuffle_from_state

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
    """Returns the next step of a state of these batches.

    From that step on, a mixture may have other weights than those of the state; before
    it, they must be the same.

    Raises FormatVersionError for the state of another version, StateMismatchError for
    other datasets or another order, and InputError for what is not a state.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise _not_a_state(state)
    if state["version"] != STATE_VERSION:
        raise FormatVersionError(
            "another version wrote the state of the feed",
            expected=STATE_VERSION,
            got=state["version"],
            cure="resume with the version that wrote it",
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
            cure="make the batches as in the run that wrote the state, or start again "
            "without it",
        )
    step = checked_count(state["step"], what="step of the state", least=0)
    if batches.schedule.mixture is not None:
        phases = Mixture.from_state(state["mixture"]).phases
        _check_mixture(batches, batches.schedule.mixture.phases, phases, step)
    return step


def batches_of_state(
    datasets: Dataset | Mapping[str, Dataset], state: Mapping[str, Any]
) -> Batches:
    """Returns the global batches that a feed gave when its state was taken.

    The datasets of a mixture are given by their names. It raises what `step_of` does.
    """
    named = datasets if isinstance(datasets, Mapping) else {"": datasets}
    try:
        entries = {str(entry["name"]): entry for entry in state["datasets"]}
        mixture = state["mixture"]
        if entries.keys() != named.keys() or (mixture is None) != ("" in named):
            raise InputError(
                "the state has datasets with other names",
                expected=", ".join(entries) if mixture else "a dataset without a name",
                got=", ".join(named) or "none",
                cure="open the datasets of the run that wrote the state, and give them "
                "the same names",
            )
        schedule = Schedule(
            orders=tuple(
                DatasetOrder(
                    num_records=len(named[name]),
                    seed=entry["seed"],
                    shuffle=shuffle_from_state(entry["shuffle"]),
                    epochs=entry["epochs"],
                    name=name,
                )
                for name, entry in entries.items()
            ),
            mixture=None if mixture is None else Mixture.from_state(mixture),
            batch_size=state["batch_size"],
            drop_remainder=state["drop_remainder"],
        )
    except GristmillError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise _not_a_state(state) from e
    batches = Batches(
        datasets=tuple(named[name] for name in entries), schedule=schedule
    )
    step_of(state, batches)  # It compares the datasets.
    return batches


def _not_a_state(found: object) -> InputError:
    return InputError(
        "not the state of a feed",
        expected="what get_state of a feed returned",
        got=f"{found!r:.200}",
        cure="give the whole state, as it was saved with the checkpoint",
    )


def _differences(
    own: Any, other: Any, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields the name and both values of each difference."""
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
    # Weights may change from the step on; later changes in the state are replaced.
    limit = step * batches.batch_size
    latest = other_rest[0].from_position if other_rest else rest[0].from_position
    if rest and limit <= rest[0].from_position <= latest:
        return
    names = batches.names
    raise StateMismatchError(
        "the state is of a mixture with other weights",
        expected=_weights_text(own, names, batches.batch_size),
        got=_weights_text(other, names, batches.batch_size),
        cure="give the weights of the run that wrote the state, and their changes; "
        f"for other weights from here on: with_weights(..., step={step})",
    )


def _weights_text(phases: Any, names: tuple[str, ...], batch_size: int) -> str:
    return "; ".join(
        f"from step {phase.from_position // batch_size:,} "
        + ", ".join(f"{name} {w}" for name, w in zip(names, phase.weights, strict=True))
        for phase in phases
    )
