"""The state of a feed, which a checkpoint keeps, and how it is compared.

The state is the step and everything that determines which records are in which row. The
number of hosts and workers is not part of it, because the order does not depend on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from gristmill.dataset.errors import (
    FormatVersionError,
    InputError,
    StateMismatchError,
)
from gristmill.loader.batches import Batches
from gristmill.loader.dataset import Dataset
from gristmill.loader.indices import POSITION_LIMIT
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import Schedule
from gristmill.loader.order.shuffle import shuffle_from_state
from gristmill.loader.state_fields import NO_FIELD, StateFields, field_error, is_same

B = TypeVar("B", bound=Batches)

STATE_VERSION = 2
_WITHOUT_EDITIONS = 1  # The version before: the digests tell the edition.


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
                "edition": dataset.edition,
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
    other datasets or another order, and InputError, which names the field, for what is
    not a state.
    """
    fields = _checked(state)
    own = state_of(batches, step=0)
    # Compared below.
    compared = {**state, "version": STATE_VERSION, "step": 0}
    if state["version"] == _WITHOUT_EDITIONS:
        for entry in own["datasets"]:
            del entry["edition"]
    if own["mixture"] and compared["mixture"]:
        compared["mixture"] = own["mixture"]
    differences = list(_differences(own, compared))
    if differences:
        raise StateMismatchError(
            "the state is of other records, or of another order, than this feed",
            where=", ".join(name for name, _, _ in differences),
            expected=", ".join(f"{name} {ours!r}" for name, ours, _ in differences),
            got=", ".join(f"{name} {theirs!r}" for name, _, theirs in differences),
            cure="make the batches as in the run that wrote the state, or start again "
            "without it",
        )
    steps = batches.steps
    most = POSITION_LIMIT // batches.batch_size if steps is None else steps
    step = fields.integer("step", most=most)
    if batches.schedule.mixture is not None:
        _check_mixture(batches, batches.schedule.mixture, _mixture(fields), step)
    return step


def batches_as_of(batches: B, state: Mapping[str, Any]) -> B:
    """Returns batches of the editions that a state is of, where those are earlier ones.

    What was appended since has no part in them: they are the batches that the feed gave
    when its state was taken. Weights that are the lengths of the datasets, as by
    default, are those of then. It raises what `step_of` does, and compares nothing.
    """
    entries = _checked(state).objects("datasets")
    if len(entries) != len(batches.datasets):
        return batches
    pairs = zip(batches.datasets, entries, strict=True)
    datasets = tuple(_as_of(dataset, entry) for dataset, entry in pairs)
    if datasets == batches.datasets:
        return batches
    schedule = batches.schedule
    mixture = schedule.mixture
    if mixture == Mixture.of([len(dataset) for dataset in batches.datasets]):
        mixture = Mixture.of([len(dataset) for dataset in datasets])
    orders = tuple(
        dataclasses.replace(order, num_records=len(dataset))
        for order, dataset in zip(schedule.orders, datasets, strict=True)
    )
    schedule = dataclasses.replace(schedule, orders=orders, mixture=mixture)
    return dataclasses.replace(batches, datasets=datasets, schedule=schedule)


def _as_of(dataset: Dataset, entry: StateFields) -> Dataset:
    """Returns a dataset as of the edition of a state, if that is an earlier one."""
    last = dataset.edition or 1
    if "edition" in entry.value:
        edition = entry.get("edition")
        return dataset.as_of(edition) if edition in range(1, last) else dataset
    if dataset.committed is not None:
        for edition in range(1, last):
            earlier = dataset.committed.until(edition)
            if earlier.records_digest == entry.value["records_digest"]:
                return dataset.as_of(edition)
    return dataset


def batches_of_state(
    datasets: Dataset | Mapping[str, Dataset], state: Mapping[str, Any]
) -> Batches:
    """Returns the global batches that a feed gave when its state was taken.

    The datasets of a mixture are given by their names. It raises what `step_of` does.
    """
    named = datasets if isinstance(datasets, Mapping) else {"": datasets}
    fields = _checked(state)
    entries = {entry.text("name"): entry for entry in fields.objects("datasets")}
    mixture = _mixture(fields) if state["mixture"] is not None else None
    if entries.keys() != named.keys() or (mixture is None) != ("" in named):
        raise InputError(
            "the state has datasets with other names",
            expected=", ".join(entries) if mixture else "a dataset without a name",
            got=", ".join(named) or "none",
            cure="open the datasets of the run that wrote the state, and give them "
            "the same names",
        )
    named = {name: _as_of(named[name], entry) for name, entry in entries.items()}
    schedule = Schedule(
        orders=tuple(
            DatasetOrder(
                num_records=len(named[name]),
                seed=entry.integer("seed", least=None),
                shuffle=shuffle_from_state(
                    entry.get("shuffle"), place=entry.place("shuffle")
                ),
                epochs=_epochs(entry),
                name=name,
            )
            for name, entry in entries.items()
        ),
        mixture=mixture,
        batch_size=fields.integer("batch_size", least=1),
        drop_remainder=fields.boolean("drop_remainder"),
    )
    batches = Batches(
        datasets=tuple(named[name] for name in entries), schedule=schedule
    )
    step_of(state, batches)  # It compares the datasets.
    return batches


def _checked(state: object) -> StateFields:
    """Returns the fields of a state: all are there, and of the kind they must be."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise InputError(
            "not the state of a feed",
            expected="what get_state of a feed returned",
            got=f"{state!r:.200}",
            cure="give the whole state, as it was saved with the checkpoint",
        )
    fields = StateFields(state)
    version = fields.integer("version", least=None)
    if version not in (_WITHOUT_EDITIONS, STATE_VERSION):
        raise FormatVersionError(
            "another version wrote the state of the feed",
            expected=STATE_VERSION,
            got=version,
            cure="resume with the version that wrote it",
        )
    fields.integer("step")
    fields.integer("batch_size", least=1)
    fields.boolean("drop_remainder")
    for entry in fields.objects("datasets"):
        for name in ("name", "order_digest"):
            entry.text(name)
        if version != _WITHOUT_EDITIONS and entry.get("edition") is not None:
            entry.integer("edition", least=1)
        if entry.get("records_digest") is not None:
            entry.text("records_digest")
        entry.integer("records", least=1)
        entry.integer("seed", least=None)
        entry.fields("shuffle")
        _epochs(entry)
    if fields.get("mixture") is not None:
        _mixture(fields)
    return fields


def _epochs(entry: StateFields) -> int | None:
    return None if entry.get("epochs") is None else entry.integer("epochs", least=1)


def _mixture(fields: StateFields) -> Mixture:
    mixture = Mixture.from_state(fields.get("mixture"))
    expected = len(fields.items("datasets"))
    if mixture.num_datasets != expected:
        weights = f"{expected} weights, one for each of the datasets"
        raise field_error("mixture.phases", weights, f"{mixture.num_datasets} weights")
    return mixture


def _differences(
    own: Any, other: Any, name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields the name and both values of each difference."""
    if isinstance(own, Mapping) and isinstance(other, Mapping):
        for key in [*own, *(key for key in other if key not in own)]:
            below = f"{name}.{key}" if name else str(key)
            if key in own and key in other:
                yield from _differences(own[key], other[key], below)
            else:
                yield below, own.get(key, NO_FIELD), other.get(key, NO_FIELD)
    elif isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for number, (ours, theirs) in enumerate(zip(own, other, strict=True)):
            part = isinstance(ours, Mapping) and ours.get("name")
            yield from _differences(ours, theirs, f"{name}[{part or number}]")
    elif not is_same(own, other):
        yield name, own, other


def _check_mixture(
    batches: Batches, own_mixture: Mixture, other_mixture: Mixture, step: int
) -> None:
    own, other = own_mixture.phases, other_mixture.phases
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
