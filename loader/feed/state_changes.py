"""Changes at steps in the state of a feed: weights, batch sizes and datasets.

What changed before the step of a state must be the same in the batches that continue
from there. What changes later may be replaced by another change, but not forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import StateMismatchError
from gristmill.loader.base.state_fields import (
    Content,
    StateFields,
    content_of,
    field_error,
)
from gristmill.loader.order.batch_sizes import BatchSizes, Resize
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.step_records import Schedule

_REMOVED = "records", "digest"


class Change(NamedTuple):
    """A value that holds from a row of a step on."""

    at: tuple[int, int]
    value: Any


class Extended(NamedTuple):
    """What a dataset holds from a step on.

    Attributes:
        content: Its records.
        removed: How many records of before are removed, and the digest of their
            numbers; None if none is.
    """

    content: Content
    removed: tuple[int, str] | None


def resized_state(schedule: Schedule) -> list[dict[str, Any]]:
    """Returns the changes of the batch size, as JSON values."""
    return [resize._asdict() for resize in schedule.resizes]


def extended_state(
    schedule: Schedule, contents: Sequence[Sequence[Content]]
) -> list[dict[str, Any]]:
    """Returns the extensions of datasets, as JSON values.

    `contents` are those of each dataset at step 0 and after each of its extensions.
    """
    names = [order.name for order in schedule.orders]
    found: list[dict[str, Any]] = []
    for step, number, (content, removed) in extended_of(schedule, contents):
        entry = {"step": step, "dataset": names[number], **content._asdict()}
        if removed is not None:
            entry["removed"] = dict(zip(_REMOVED, removed, strict=True))
        found.append(entry)
    return found


def extended_of(
    schedule: Schedule, contents: Sequence[Sequence[Content]]
) -> Iterator[tuple[int, int, Extended]]:
    """Yields the step and the dataset of each extension, and what it holds then."""
    later = [iter(known[1:]) for known in contents]
    for step, number, _, removed in schedule.extensions:
        lost = (len(removed), removed.digest) if len(removed) else None
        yield step, number, Extended(next(later[number]), lost)


def resizes_of(fields: StateFields) -> tuple[Resize, ...]:
    """Returns the changes of the batch size of a state."""
    found: list[Resize] = []
    for entry in fields.objects("resized"):
        entry.only("step", "batch_size")
        least = found[-1].step + 1 if found else 1
        step = entry.integer("step", least=least)
        found.append(Resize(step, entry.integer("batch_size", least=1)))
    return tuple(found)


def extensions_of(fields: StateFields) -> list[tuple[int, str, Extended]]:
    """Returns step, name of the dataset and what it holds, of a state's extensions."""
    found: list[tuple[int, str, Extended]] = []
    names = [entry.text("name") for entry in fields.objects("datasets")]
    for entry in fields.objects("extended"):
        entry.only("step", "dataset", "removed", *Content._fields)
        name, step = entry.text("dataset"), entry.integer("step")
        if name not in names:
            expected = f"one of {', '.join(names)}"
            raise field_error(entry.place("dataset"), expected, name)
        if found and (step, names.index(name)) <= (
            found[-1][0],
            names.index(found[-1][1]),
        ):
            raise field_error(entry.place("step"), "steps in their order", step)
        removed = None
        if "removed" in entry.value:
            lost = entry.fields("removed")
            lost.only(*_REMOVED)
            removed = lost.integer("records", least=1), lost.text("digest")
        content = content_of(entry)
        found.append((step, name, Extended(content, removed)))
    return found


def check_resized(schedule: Schedule, other: Sequence[Resize], step: int) -> None:
    """Raises StateMismatchError if the state's batches had other sizes."""
    own, first = schedule.resizes, schedule.batch_size
    _check(
        [Change((at, 0), size) for at, size in own],
        [Change((at, 0), size) for at, size in other],
        step,
        what="batches of other sizes",
        text=lambda size: f"{size:,} rows",
        first=f"from step 0 {first:,} rows; ",
        cure=f"resized(..., step={step})",
    )


def check_extended(
    schedule: Schedule,
    contents: Sequence[Sequence[Content]],
    other: Sequence[tuple[int, str, Extended]],
    step: int,
) -> None:
    """Raises StateMismatchError if the state's datasets were extended otherwise."""
    for number, order in enumerate(schedule.orders):
        own = [
            Change((at, 0), extended)
            for at, which, extended in extended_of(schedule, contents)
            if which == number
        ]
        known = dict(own)
        _check(
            own,
            [
                Change((at, 0), _known(known.get((at, 0)), extended))
                for at, name, extended in other
                if name == order.name
            ],
            step,
            what="a dataset with other extensions",
            text=_told,
            first="" if not order.name else f"{order.name}: ",
            cure=f"extended(..., step={step})",
        )


def _known(own: Extended | None, other: Extended) -> Extended:
    """Returns our own extension in place of a state's if it is the same."""
    if own is None or own.removed != other.removed:
        return other
    same = own.content.edition == other.content.edition
    return own if same and own.content.is_same(other.content) else other


def _told(extended: Extended) -> str:
    content, removed = extended
    text = f"{content.records:,} records with digest {content.records_digest}"
    return text + (f", {removed[0]:,} removed" if removed else "")


def check_weights(
    schedule: Schedule, own: Mixture, other: Mixture, sizes: BatchSizes, step: int
) -> None:
    """Raises StateMismatchError if the state's mixture had other weights.

    `sizes` are the batch sizes of the state.
    """
    names, ours = schedule.names, schedule.sizes
    _check(
        [Change(ours.find(phase.from_position), phase.weights) for phase in own.phases],
        [
            Change(sizes.find(phase.from_position), phase.weights)
            for phase in other.phases
        ],
        step,
        what="a mixture with other weights",
        text=lambda weights: ", ".join(
            f"{name} {share}" for name, share in zip(names, weights, strict=True)
        ),
        first="",
        cure=f"with_weights(..., step={step})",
    )


def _check(
    own: list[Change],
    other: list[Change],
    step: int,
    *,
    what: str,
    text: Callable[[Any], str],
    first: str,
    cure: str,
) -> None:
    same = 0
    while own[same : same + 1] == other[same : same + 1] != []:
        same += 1
    rest, other_rest = own[same:], other[same:]
    if not rest and not other_rest:
        return
    # From the step on there may be another change; later ones of the state are
    # replaced by it.
    latest = (other_rest or rest)[0].at
    if rest and (step, 0) <= rest[0].at <= latest:
        return

    def told(changes: list[Change]) -> str:
        parts = (f"from step {one.at[0]:,} {text(one.value)}" for one in changes)
        return first + ("; ".join(parts) or "no change")

    raise StateMismatchError(
        f"the state is of {what}",
        expected=told(own),
        got=told(other),
        cure="make the changes of the run that wrote the state; for another one from "
        f"here on: {cure}",
    )
