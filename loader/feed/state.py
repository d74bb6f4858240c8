"""The state of a feed, which a checkpoint keeps, and how a run continues from it.

The state is the step and everything that determines which records are in which row. The
number of hosts and workers is not part of it, because the order does not depend on it.
A digest covers all but the step, which alone may be changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InputError,
    StateMismatchError,
)
from gristmill.loader.base.indices import checked_count
from gristmill.loader.data.batches import (
    AnyBatches,
    Batches,
    BatchPlan,
    NamedPhase,
    named_datasets,
    plan_of,
    with_phases,
)
from gristmill.loader.data.dataset import Content, Dataset, GoneDataset
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import DatasetOrder
from gristmill.loader.order.shuffle import shuffle_from_state

STATE_VERSION = 1
_log = logging.getLogger(__name__)


class _NoField:
    def __repr__(self) -> str:
        return "no such field"


_NO_FIELD = _NoField()

_GRAINS = frozenset(
    (
        *("next_index", "parent", "parents", "exhausted", "workers_state"),
        *("last_seen_indices", "iterators_in_use_states"),
    )
)
"""Fields of states of Grain's datasets, and of its DataLoader."""


def state_of(batches: Batches, step: int) -> dict[str, Any]:
    """Returns the state of feeds that yield `step` next, as JSON values."""
    phases, order, drop_remainder = plan_of(batches)
    known = {
        "version": STATE_VERSION,
        "seed": order.seed,
        "shuffle": order.shuffle.to_state(),
        "epochs": order.epochs,
        "drop_remainder": bool(drop_remainder),
        "phases": [_phase_state(part) for part in phases],
    }
    return {"step": step, **known, "digest": _digest(known)}


def _phase_state(part: NamedPhase) -> dict[str, Any]:
    return {
        "step": part.step,
        "batch_size": part.batch_size,
        "mixture": None if part.mixture is None else part.mixture.to_state(),
        "datasets": [
            {"name": name, **_content_state(dataset.stored.content)}
            for name, dataset in part.datasets.items()
        ],
    }


def _content_state(content: Content) -> dict[str, Any]:
    editions = content.edition
    own = list(editions) if isinstance(editions, tuple) else editions
    return content._asdict() | {"edition": own}


def _digest(known: Mapping[str, Any]) -> str:
    text = json.dumps(known, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class _Saved(NamedTuple):
    """A state, as it was written, and the step to go to."""

    step: int
    value: dict[str, Any]

    @property
    def phases(self) -> list[dict[str, Any]]:
        """The phases of the state."""
        phases: list[dict[str, Any]] = self.value["phases"]
        return phases

    @property
    def running(self) -> int:
        """The number of the phase that has the step."""
        return len([0 for phase in self.phases if phase["step"] <= self.step]) - 1


def _saved(state: object) -> _Saved:
    """Returns the state as it was written; raises InputError for another."""
    refuse_grains(state, "a feed")
    if not isinstance(state, Mapping) or "version" not in state:
        raise InputError(
            "not the state of a feed",
            expected="what get_state of a feed returned",
            got=f"{state!r:.200}",
            cure="give the whole state, as it was saved with the checkpoint",
        )
    plain: dict[str, Any] = {}
    try:
        plain = json.loads(json.dumps(dict(state), default=_plain))
        step, digest = plain.pop("step", None), plain.pop("digest", None)
        expected = _digest(plain)
    except (AttributeError, TypeError, ValueError, RecursionError) as e:
        step, digest, expected = None, None, str(e)
    if plain and plain["version"] != STATE_VERSION:
        raise FormatVersionError(
            "another version wrote the state of the feed",
            expected=STATE_VERSION,
            got=f"{plain['version']!r:.100}",
            cure="resume with the version that wrote it",
        )
    if digest != expected or "step" not in state:
        raise InputError(
            "the state of the feed is not as it was written",
            expected=f"digest {expected}",
            got=f"{digest!r:.100}",
            cure="give the whole state as it was saved, or restore the checkpoint "
            "from a copy; the step alone may be another one",
        )
    return _Saved(checked_count(step, what="step of the state", least=0), plain)


def _plain(value: Any) -> Any:
    """Returns a value of a state as one of JSON: other libraries write their own."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist()


def _contents(phase: Mapping[str, Any]) -> dict[str, Content]:
    """Returns the contents of a phase's datasets, by their names."""
    return {entry["name"]: _content(entry) for entry in phase["datasets"]}


def _content(entry: Mapping[str, Any]) -> Content:
    values = [entry[name] for name in Content._fields]
    edition = tuple(values[0]) if isinstance(values[0], list) else values[0]
    return Content(edition, *values[1:])


def resumed(batches: AnyBatches, state: Mapping[str, Any]) -> tuple[AnyBatches, int]:
    """Returns the batches that continue from a state, and its step.

    Phases before the running one are those of the state. The running phase must be that
    of the state, in the editions that it names, unless a phase of `batches` begins at
    its step. Later phases are those of `batches`.

    Returns:
        `batches` itself if the state changes nothing.

    Raises:
        FormatVersionError: Another version wrote the state.
        StateMismatchError: It is of other datasets, another order, or an edition that
            is gone; the error names the differences.
        InputError: It is not a state, or is not as it was written.
    """
    saved, parts = _saved(state), plan_of(batches).phases
    step, running = saved.step, saved.phases[saved.running]
    number = sum(part.step <= step for part in parts) - 1
    own = state_of(batches, step)
    settings = [*_differences(_settings(own), _settings(saved.value))]
    matched = {}
    for part in parts:
        for phase in saved.phases[saved.running :]:
            if phase["step"] == part.step and (found := _matched(part, phase)):
                matched[part.step] = found
    begins = parts[number].step == step > 0
    same = parts[number].step == running["step"] in matched
    if settings or not (same or begins):
        raise _mismatch(parts[number], saved, settings)
    past = saved.phases[: saved.running + (running["step"] < parts[number].step)]
    rest = [matched.get(part.step, part) for part in parts[number:]]
    _check_later(parts[number + 1 :], matched, saved, replaced=begins)
    earlier = [_past(phase, parts) for phase in past]
    changed = with_phases(batches, (*earlier, *rest))
    most = changed.schedule.step_limit
    checked_count(step, what="step of the state", least=0, most=most)
    return batches if changed == batches else changed, step


def _settings(state: Mapping[str, Any]) -> dict[str, Any]:
    apart = ("step", "phases", "digest")
    return {name: value for name, value in state.items() if name not in apart}


def _matched(part: NamedPhase, phase: Mapping[str, Any]) -> NamedPhase | None:
    """Returns a phase of batches in the editions of a state, None if they differ.

    Weights by the lengths of datasets follow these editions.
    """
    found = _past(phase, [part])
    if [*part.datasets] != [*found.datasets] or _has_gone(found):
        return None
    own = part._replace(
        datasets=found.datasets, mixture=part.mixture_of(found.datasets)
    )
    return own if own._replace(step=found.step) == found else None


def _has_gone(part: NamedPhase) -> bool:
    return any(isinstance(one, GoneDataset) for one in part.datasets.values())


def snapshot(dataset: Dataset, content: Content) -> Dataset | None:
    """Returns the dataset with some content, in an earlier edition if need be.

    None if that is gone. It is never a later edition than that of `dataset`.
    """
    stored = dataset.stored
    if stored.content.is_same(content):
        return dataset
    editions: Any = content.edition
    if stored.only is None and not isinstance(editions, tuple):
        editions = (editions,)  # Others were joined after it.
    if editions is None or isinstance(editions, tuple) != (stored.only is None):
        return None
    found = stored.as_of(editions)
    if found is None or not found.stored.content.is_same(content):
        return None
    pairs = zip(found.stored.parts, stored.parts, strict=False)
    later = any((one.edition or 0) > (own.edition or 0) for one, own in pairs)
    return None if later else found


def _past(phase: Mapping[str, Any], parts: Sequence[NamedPhase]) -> NamedPhase:
    """Returns a phase of a state, with a `GoneDataset` for each that is gone."""
    datasets = {}
    for name, content in _contents(phase).items():
        known = [part.datasets[name] for part in parts if name in part.datasets]
        opened = (snapshot(dataset, content) for dataset in known)
        found = next((one for one in opened if one is not None), None)
        path = known[0].path if known else name
        datasets[name] = found or GoneDataset(path, content)
    mixture = phase["mixture"] and Mixture.from_state(phase["mixture"])
    return NamedPhase(phase["step"], datasets, mixture, phase["batch_size"])


def _check_later(
    own: Sequence[NamedPhase],
    matched: Mapping[int, NamedPhase],
    saved: _Saved,
    *,
    replaced: bool,
) -> None:
    """Raises StateMismatchError if batches lack a later phase of a state."""
    later = [phase["step"] for phase in saved.phases[saved.running + 1 :]]
    changed = [part.step for part in own if part.step not in matched]
    left = [step for step in later if step not in matched]
    if replaced or not left or (changed and changed[0] <= left[0]):
        return
    raise StateMismatchError(
        "the state has a later phase, which the batches have not",
        expected="from step " + (", ".join(map(str, changed)) or "none on"),
        got="from step " + ", ".join(f"{step:,}" for step in left),
        cure="make the phases of the run that wrote the state; another one may take "
        f"its place: batches.then(..., step={left[0]})",
    )


def _mismatch(
    part: NamedPhase,
    saved: _Saved,
    differences: list[tuple[str, Any, Any]],
) -> StateMismatchError:
    step, phase = saved.step, saved.phases[saved.running]
    contents = _contents(phase)
    what = "the state does not match the records or the order of this feed"
    cure = "create the batches as in the run that wrote the state"
    if not differences:
        place = f"phases[{saved.running}]"
        differences = [*_differences(_phase_state(part), phase, place)]
        gone = [
            name
            for name, content in contents.items()
            if name in part.datasets and _is_gone(part.datasets[name], content)
        ]
        if gone:
            what = "the state is of an edition that is not there any more"
        if step and part.datasets.keys() >= contents.keys():
            anew = "go on with these in a new epoch: "
            anew += f"batches = batches.then(step={step})"
            cure = anew if gone else f"{cure}; or {anew}"
    return StateMismatchError(
        what,
        where=", ".join(name for name, _, _ in differences),
        expected=", ".join(f"{name} {ours!r}" for name, ours, _ in differences),
        got=", ".join(f"{name} {theirs!r}" for name, _, theirs in differences),
        cure=cure,
    )


def _is_gone(dataset: Dataset, content: Content) -> bool:
    """Returns whether the edition of a content is gone."""
    own, then = dataset.stored.edition, content.edition
    if not isinstance(own, int) or not isinstance(then, int) or then >= own:
        return False
    return dataset.stored.as_of(then) is None


def batches_of_state(
    datasets: Dataset | Mapping[str, Dataset], state: Mapping[str, Any]
) -> Batches:
    """Returns the global batches of the feed whose state this is.

    Give the datasets of a mixture by name. It raises the errors of `resumed`.
    """
    named, saved = named_datasets(datasets), _saved(state)
    names = dict.fromkeys(name for phase in saved.phases for name in _contents(phase))
    if names.keys() != named.keys():
        raise InputError(
            "the state has datasets with other names",
            expected=", ".join(filter(None, names)) or "a dataset without a name",
            got=", ".join(named) or "none",
            cure="open the datasets of the run that wrote the state, and give them "
            "the same names",
        )
    like = DatasetOrder(
        num_records=1,
        seed=saved.value["seed"],
        shuffle=shuffle_from_state(saved.value["shuffle"]),
        epochs=saved.value["epochs"],
    )
    given = [NamedPhase(0, named, None, 1)]
    parts = [_past(phase, given) for phase in saved.phases]
    for name, dataset in parts[-1].datasets.items():
        # Earlier phases may have had another dataset of this name.
        content = _contents(saved.phases[-1])[name]
        if isinstance(dataset, GoneDataset) and not _is_gone(named[name], content):
            own = parts[-1]._replace(datasets={**parts[-1].datasets, **named})
            raise _mismatch(own, saved._replace(step=parts[-1].step), [])
    return Batches(BatchPlan(tuple(parts), like, saved.value["drop_remainder"]))


def continued_batches(
    batches: AnyBatches, state: Mapping[str, Any], *, step: int
) -> AnyBatches:
    """Returns the batches of a state up to a step, and these from there on.

    With them a run continues with other weights or another batch size. It returns
    `batches` itself if the state is theirs. A state of another dataset, seed or shuffle
    is left to `feed.set_state` to refuse.

    Args:
        batches: Batches of one phase.
        state: What `feed.get_state` returned.
        step: The first step of `batches`, which no host has begun.
    """
    part, saved = plan_of(batches).phases[0], _saved(state)
    found = [_past(phase, [part]) for phase in saved.phases]
    last = found[-1]
    if _has_gone(last):
        return batches
    if _matched(part, saved.phases[-1]) is None:
        mixture = part.mixture_of(last.datasets)
        changes = {}
        if part.batch_size != last.batch_size:
            changes["batch size"] = f"{part.batch_size:,} rows"
        if mixture is not None and mixture != last.mixture:
            shares = zip(last.datasets, mixture.weights, strict=True)
            weights = (f"{name} {float(share):.4g}" for name, share in shares)
            changes["weights"] = ", ".join(weights)
        for what, value in changes.items():
            _log.warning(
                "going on with the %s of the state up to step %s, and with %s from "
                "there on",
                *(what, f"{step:,}", value),
            )
        found = [one for one in found if one.step < max(step, 1)]
        found.append(NamedPhase(step, last.datasets, mixture, part.batch_size))
    elif len(found) == 1:
        return batches
    return with_phases(batches, tuple(found))


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
                yield below, own.get(key, _NO_FIELD), other.get(key, _NO_FIELD)
    elif isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for number, (ours, theirs) in enumerate(zip(own, other, strict=True)):
            part = isinstance(ours, Mapping) and ours.get("name")
            yield from _differences(ours, theirs, f"{name}[{part or number}]")
    elif own != other:
        yield name, own, other
