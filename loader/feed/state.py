"""The state of a feed, which a checkpoint keeps, and how it is compared.

The state is the step and everything that determines which records are in which row. The
number of hosts and workers is not part of it, because the order does not depend on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InputError,
    StateMismatchError,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.base.state_fields import (
    NO_FIELD,
    Content,
    StateFields,
    content_of,
    field_error,
    is_same,
)
from gristmill.loader.data.batches import Batches
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.data.past_states import PastStates, removed_between
from gristmill.loader.feed.state_changes import (
    Extended,
    check_extended,
    check_resized,
    check_weights,
    extended_state,
    extensions_of,
    resized_state,
    resizes_of,
)
from gristmill.loader.order.batch_sizes import BatchSizes, Resize
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.shuffle import shuffle_from_state
from gristmill.loader.order.step_records import Extension, Schedule

B = TypeVar("B", bound=Batches)

STATE_VERSION = 1

_GRAINS = frozenset(
    (
        *("next_index", "parent", "parents", "exhausted", "workers_state"),
        *("last_seen_indices", "iterators_in_use_states"),
    )
)
"""Fields of states of Grain's datasets, and of its DataLoader."""


def state_of(batches: Batches, step: int) -> dict[str, Any]:
    """Returns the state of feeds that give `step` next, as JSON values."""
    schedule, contents = batches.schedule, _contents(batches)
    mixture = schedule.mixture
    return {
        "version": STATE_VERSION,
        "step": step,
        "batch_size": schedule.batch_size,
        "drop_remainder": schedule.drop_remainder,
        "datasets": [
            {
                "name": order.name,
                **contents[number][0]._asdict(),
                "seed": order.seed,
                "shuffle": order.shuffle.to_state(),
                "epochs": order.epochs,
            }
            for number, order in enumerate(schedule.orders)
        ],
        "mixture": None if mixture is None else mixture.to_state(),
        "resized": resized_state(schedule),
        "extended": extended_state(schedule, contents),
    }


def step_of(state: Mapping[str, Any], batches: Batches) -> int:
    """Returns the next step of a state of these batches.

    From that step on, weights, batch size and datasets may change; before it, they must
    be the same.

    Raises FormatVersionError for the state of another version, StateMismatchError for
    other datasets or another order, and InputError, which names the field, for what is
    not a state.
    """
    fields = _checked(state)
    own, other = _compared(state_of(batches, step=0)), _compared(state)
    if own["mixture"] and other["mixture"]:
        other["mixture"] = own["mixture"]  # Compared below.
    for ours, theirs in zip(own["datasets"], other["datasets"], strict=False):
        for digest in ("order_digest", "records_digest"):
            # The known part of an edition whose files are gone must be the same.
            past = None in (ours["order_digest"], theirs["order_digest"])
            if past and None in (ours[digest], theirs[digest]):
                ours[digest] = theirs[digest]
    differences = list(_differences(own, other))
    if differences:
        cure = "create the batches as in the run that wrote the state, or start again "
        raise StateMismatchError(
            "the state does not match the records or the order of this feed",
            where=", ".join(name for name, _, _ in differences),
            expected=", ".join(f"{name} {ours!r}" for name, ours, _ in differences),
            got=", ".join(f"{name} {theirs!r}" for name, _, theirs in differences),
            cure=_changed_cure(batches, fields) or cure + "without it",
        )
    resizes, extensions = _changes(fields)
    sizes = BatchSizes(fields.integer("batch_size", least=1), resizes)
    step = fields.integer("step", most=batches.schedule.step_limit)
    schedule = batches.schedule
    check_resized(schedule, resizes, step)
    check_extended(schedule, _contents(batches), extensions, step)
    if schedule.mixture is not None:
        check_weights(schedule, schedule.mixture, _mixture(fields), sizes, step)
    return step


def _contents(batches: Batches) -> list[tuple[Content, ...]]:
    return [batches.contents_of(number) for number in range(len(batches.datasets))]


def _compared(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a state that stays, whatever changes at a step."""
    apart = {"version", "step", "resized", "extended"}
    return {name: value for name, value in state.items() if name not in apart}


def batches_as_of(batches: B, state: Mapping[str, Any]) -> B:
    """Returns batches of the editions that a state is of, where those are earlier ones.

    What was appended since has no part in them: they are the batches that the feed gave
    when its state was taken. Weights that are the lengths of the datasets, as by
    default, are those of then. It raises what `step_of` does, and compares nothing.
    """
    entries = _checked(state).objects("datasets")
    # Batches that are extended say themselves with which edition they begin.
    if len(entries) != len(batches.datasets) or batches.schedule.extensions:
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


def _as_of(dataset: Dataset, entry: StateFields, *, past: bool = False) -> Dataset:
    """Returns a dataset as of the edition of a state, if that is an earlier one.

    With `past`, also as of one of which files are gone.
    """
    committed, edition = dataset.committed, entry.get("edition")
    if committed is None:
        return dataset
    if past:
        return _as_of_edition(dataset, edition)
    return dataset.as_of(edition) if edition in _kept_editions(committed) else dataset


def _as_of_edition(dataset: Dataset, edition: int | None) -> Dataset:
    """Returns a dataset as of an edition, also of one of which files are gone.

    It is the dataset itself if it has no editions, or never had this one.
    """
    committed = dataset.committed
    if committed is None or edition is None:
        return dataset
    known = edition in _kept_editions(committed) or PastStates(dataset).at(edition)
    return dataset.as_of(edition) if known else dataset


def _check_last(dataset: Dataset, last: Content) -> None:
    """Raises InputError if a dataset had the records of a state, with other numbers."""
    if dataset.content.is_same(last) or dataset.begins_with(last):
        return
    if PastStates(dataset).find(last) is not None:
        raise InputError(
            "records were removed since from datasets that are joined",
            where=repr(dataset),
            expected=f"the {last.records:,} records of the state",
            got=f"{len(dataset):,}",
            cure="give the editions that the run had, such as --edition 1,last",
        )


def _kept_editions(split: Split) -> list[int]:
    """Returns the editions that were the newest once, and can be opened as of then."""
    kept = []
    for edition in sorted(split.known):
        with contextlib.suppress(IndexError):
            kept.append(split.until(edition).edition)
    return kept


def _changed_cure(batches: Batches, fields: StateFields) -> str | None:
    """Returns the cure for datasets that have changed since, None for others."""
    entries = fields.objects("datasets")
    if len(entries) != len(batches.datasets):
        return None
    then = f"batches.extended(dataset, step={fields.value['step']})"
    for dataset, entry in zip(batches.datasets, entries, strict=True):
        content = content_of(entry)
        if dataset.content.is_same(content):
            continue
        if content.records < len(dataset) and dataset.begins_with(content):
            return (
                f"the dataset has grown since: make the batches of its first "
                f"{content.records:,} records, as in the run that wrote the state, and "
                f"then {then}"
            )
        if PastStates(dataset).find(content) is not None:
            return (
                "records were removed from the dataset since: make the batches of "
                f"loader.open(path, edition={content.edition}), as in the run that "
                f"wrote the state, and then {then}"
            )
    return None


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
    resizes, extensions = _changes(fields)
    names = list(entries)
    contents = {name: [content_of(entry)] for name, entry in entries.items()}
    for _, name, extended in extensions:
        contents[name].append(extended.content)
    opened = {
        # The dataset may have changed since.
        name: _as_of(named[name], entry, past=True)
        if len(contents[name]) == 1
        else _as_of_edition(named[name], contents[name][-1].edition)
        for name, entry in entries.items()
    }
    for name, dataset in opened.items():
        _check_last(dataset, contents[name][-1])
    removed = {
        name: iter(removed_between(opened[name], contents[name])) for name in opened
    }
    schedule = Schedule(
        orders=tuple(
            DatasetOrder(
                num_records=contents[name][0].records,
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
        resizes=resizes,
        extensions=tuple(
            Extension(
                step, names.index(name), extended.content.records, next(removed[name])
            )
            for step, name, extended in extensions
        ),
    )
    batches = Batches(
        datasets=tuple(opened.values()),
        schedule=schedule,
        contents=tuple(
            tuple(_found(opened[name], content) for content in contents[name])
            for name in names
        ),
    )
    step_of(state, batches)  # It compares the datasets.
    return batches


def _found(dataset: Dataset, content: Content) -> Content:
    """Returns a content of a state if the dataset has had it, or else its own."""
    own = dataset.content
    if own.is_same(content):
        return own
    has_had = dataset.begins_with(content) or PastStates(dataset).find(content)
    return content if has_had else own


def _checked(state: object) -> StateFields:
    """Returns the fields of a state: all are there, and of the kind they must be."""
    refuse_grains(state, "a feed")
    if not isinstance(state, Mapping) or "version" not in state:
        raise InputError(
            "not the state of a feed",
            expected="what get_state of a feed returned",
            got=f"{state!r:.200}",
            cure="give the whole state, as it was saved with the checkpoint",
        )
    fields = StateFields(state)
    version = fields.integer("version", least=None)
    if version != STATE_VERSION:
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
        entry.text("name")
        content_of(entry)
        entry.integer("seed", least=None)
        entry.fields("shuffle")
        _epochs(entry)
    if fields.get("mixture") is not None:
        _mixture(fields)
    _changes(fields)
    return fields


def refuse_grains(state: object, of: str) -> None:
    """Raises StateMismatchError for a state of Grain's datasets or of its DataLoader.

    Args:
        state: The supposed state.
        of: The object that it should belong to.
    """
    found = state
    if isinstance(state, bytes):  # As DataLoader writes it.
        with contextlib.suppress(ValueError):
            found = json.loads(state)
    if isinstance(found, Mapping) and not _GRAINS.isdisjoint(found):
        raise StateMismatchError(
            "the state is that of Grain's own order, not of gristmill's",
            expected=f"what get_state of {of} returned",
            got=f"{state!r:.200}",
            cure="continue with the pipeline that wrote it, or begin the data anew: "
            "restore the model without the iterator",
        )


def _changes(
    fields: StateFields,
) -> tuple[tuple[Resize, ...], list[tuple[int, str, Extended]]]:
    """Returns the changes of batch sizes and of datasets."""
    return resizes_of(fields), extensions_of(fields)


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
