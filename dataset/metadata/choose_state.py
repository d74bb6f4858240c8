"""The split, and the state of it, that a command is given."""

from __future__ import annotations

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.splits import Split


def chosen_split(dataset: str, manifest: Manifest, split: str | None) -> str:
    """Returns the name of a split, by default of the only one; raises InputError."""
    if split is None and len(manifest.splits) == 1:
        return next(iter(manifest.splits))
    if split is None or split not in manifest.splits:
        raise InputError(
            "no such split" if split else "the dataset has several splits",
            where=dataset,
            expected=some_of(manifest.splits, 20),
            got=split,
            cure="choose one with --split",
        )
    return split


def states_of(split: Split) -> dict[int, Split]:
    """Returns the states of a split that are known, by their newest edition."""
    found = {}
    for edition in sorted(split.known):
        try:
            found[edition] = split.until(edition)
        except IndexError:
            continue  # It was never the newest edition of a state that is kept.
    return found


def state_of(dataset: str, split: Split, edition: int) -> Split:
    """Returns a split as it was when an edition was its newest; raises InputError."""
    states = states_of(split)
    if edition not in states:
        raise InputError(
            "no state of the split is known that ended with this edition",
            where=dataset,
            expected=f"edition {some_of(map(str, states), 20)}",
            got=f"edition {edition}",
            cure="choose one of these; `gristmill inspect` shows what they hold",
        )
    return states[edition]
