"""Changes of a split as `dataset.json` has it: pure functions.

Each returns the new split. Edition numbers are never reused, so no file of an edition
has the name of an earlier file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.metadata.splits import Split


def with_edition(
    split: Split | None, made: Split, *, replaces: bool = False, keep: bool = False
) -> Split:
    """Returns a split with one more edition, or with one in place of all.

    An edition that its job has made again takes the place of that edition alone.

    Args:
        split: The split as it is, or None if there is none.
        made: The edition.
        replaces: Whether it replaces the present ones. By default it is appended.
        keep: Whether the state that it replaces is kept.

    Raises:
        StorageChangedError: Another change has taken the edition's number.
    """
    if split is None and (replaces or made.edition == 1):
        return made
    if split is None:
        raise changed_split(None, made.edition)
    same = split.known.get(made.edition)
    if same is not None and (same == made or is_same(same, made)):
        return _made_again(split, made)
    if made.edition <= split.last_edition:
        raise changed_split(split, made.edition)
    there = {part.source.get("file_list_digest") for part in split.parts} - {None}
    if not replaces and made.source.get("file_list_digest") in there:
        # Going back has brought its inputs, which were not there when it began.
        raise changed_split(split, made.edition)
    return _of_parts(split, [made] if replaces else [*split.parts, made], keep=keep)


def with_parts(split: Split, made: Mapping[int, Split], *, keep: bool = True) -> Split:
    """Returns a split with other editions in place of some.

    Args:
        split: The split as it is.
        made: The new editions by the number of the one that each replaces.
        keep: Whether the state before is kept.

    Raises:
        StorageChangedError: An edition to replace is gone, or another change has taken
            the number of a new one.
    """
    gone = sorted(made.keys() - {*split.numbers})
    taken = [new.edition for new in made.values()]
    if gone or min(taken, default=split.last_edition + 1) <= split.last_edition:
        raise changed_split(split, min(gone + taken))
    parts = [made.get(part.edition, part) for part in split.parts]
    return _of_parts(split, parts, keep=keep)


def rolled_back(split: Split, edition: int) -> Split:
    """Returns a split as it was when an edition was the newest. No state is lost.

    Raises:
        IndexError: No such edition is known.
    """
    return _of_parts(split, split.until(edition).parts, keep=True)


def without_replaced(split: Split) -> Split:
    """Returns a split without the states that it replaced."""
    return dataclasses.replace(split, replaced=())


def _of_parts(split: Split, parts: Sequence[Split], *, keep: bool) -> Split:
    new = Split.of_editions(parts)
    states = [*split.replaced, *([split.alone] if keep else ())]
    return dataclasses.replace(
        new,
        # The beginning of a state need not be kept beside it.
        replaced=tuple(state for state in states if not _begins_with(new, state)),
        last_edition=split.last_edition,
    )


def _begins_with(split: Split, state: Split) -> bool:
    """Returns whether a state is found in a split without being kept."""
    try:
        return split.until(state.edition) == state
    except IndexError:
        return False


def _made_again(split: Split, made: Split) -> Split:
    def renewed(state: Split) -> Split:
        parts = [made if p.edition == made.edition else p for p in state.parts]
        return Split.of_editions(parts)

    return dataclasses.replace(
        renewed(split),
        replaced=tuple(map(renewed, split.replaced)),
        last_edition=split.last_edition,
    )


def is_same(split: Split, other: Split) -> bool:
    """Returns whether the same job, or write of the same bytes, made both."""
    own, others = (
        [one.source.get(name) for name in ("job", "write")] for one in (split, other)
    )
    written = own[1] is None or split.shards_digest == other.shards_digest
    return own == others != [None, None] and written


def changed_split(split: Split | None, edition: int) -> StorageChangedError:
    """Returns the error for a number that another command has taken meanwhile."""
    last = 0 if split is None else split.last_edition
    return StorageChangedError(
        "another command has changed the split while this one ran",
        expected=f"edition {edition:,} to be the next",
        got=f"edition {last:,} was the last" if last else "the split is gone",
        cure="run this command again: it makes a later edition",
    )
