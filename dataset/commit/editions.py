"""Editions of a split, and the changes that commands make to it.

An edition gets its number when it is committed: the next one of its split, never used
before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.dataset.base.errors import StorageChangedError, some_of
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_replaced_manifest
from gristmill.dataset.metadata.splits import Split


def with_write(
    split: Split | None, made: Split, write: Write, *, keep: bool = False
) -> Split:
    """Returns a split with what a write made, under a new edition number.

    Args:
        split: The split as it is, or None if there is none.
        made: The edition that was made.
        write: The write that made it. If it replaces nothing, the edition is appended
            to what was there, and to what was appended meanwhile.
        keep: Whether to keep the state that it replaces.

    Raises:
        StorageChangedError: The split is not as it was, or the same write has made
            something else meanwhile.
    """
    base, known = write.base, {} if split is None else split.known
    own = [n for n, one in known.items() if one.source.get("job") == write.id]
    if split is not None and own:
        before = known[own[0]]
        # A loop may yield other records each time.
        if before.shards_digest != made.shards_digest:
            raise changed_since(split, base, where=write.where)
        # Columns stay: their readers refuse other records.
        again = dataclasses.replace(made, edition=own[0], columns=before.columns)
        return _changed_parts(split, {own[0]: again})
    if not (_is_at(split, base) if write.replaces else stands(split, base)):
        raise changed_since(split, base, where=write.where)
    if split is None:
        return made
    made = dataclasses.replace(made, edition=split.last_edition + 1)
    parts = [made] if write.replaces else [*split.parts, made]
    return _of_parts(split, parts, keep=keep)


def _is_at(split: Split | None, base: int) -> bool:
    return max(0, base) == (0 if split is None else split.edition)


def stands(split: Split | None, base: int) -> bool:
    """Returns whether a split is unchanged except for appends.

    Args:
        split: The split as it is.
        base: Its newest edition before, 0 for no split.
    """
    if split is None or not base:
        return _is_at(split, base)
    numbers = split.numbers
    return base in numbers and max(numbers[: 1 + numbers.index(base)]) == base


def changed_since(split: Split | None, base: int, *, where: str) -> StorageChangedError:
    """Returns the error for a split that was changed.

    Args:
        split: The split as it is.
        base: Its newest edition before, 0 for no split.
        where: The dataset and the split.
    """
    return StorageChangedError(
        "another command has changed the split while this one ran",
        where=where,
        expected=f"edition {base:,}" if base > 0 else "no such split",
        got=_newest(split),
        cure="look at the split with gristmill inspect, and run this command again if "
        "its result is still wanted; gristmill clean --unfinished deletes what it has "
        "made",
    )


def newest_edition(output: str, key: str) -> str:
    """Describes the newest edition of a split, for messages.

    Args:
        output: The dataset's directory.
        key: The split, by the `layout.write_key` of any of its writes.
    """
    manifest, _ = read_replaced_manifest(output)
    split, _ = layout.parse_write_key(key)
    return _newest(manifest.splits.get(split))


def _newest(split: Split | None) -> str:
    if split is None:
        return "no such split"
    newest, made_by = split.part(split.edition), ""
    if newest.removed is not None:
        made_by = " by gristmill remove"
    elif isinstance(inputs := newest.source.get("inputs"), list):
        made_by = f" of {some_of(inputs)}"
    return f"edition {newest.edition:,}{made_by}"


def with_parts(
    split: Split | None, made: Mapping[int, Split], *, before: Split, where: str
) -> Split:
    """Returns a split with some editions replaced by new ones, which get numbers.

    The state before is kept.

    Args:
        split: The split as it is, None if there is none.
        made: The new editions by the number of the one that each replaces.
        before: The split when the work began.
        where: The dataset and the split, for messages.

    Raises:
        StorageChangedError: The split is not as it was.
    """
    if split is not None:
        had = {part.source.get("job") for part in split.known.values()}
        if had.issuperset(new.source["job"] for new in made.values()):
            return split  # An earlier attempt has done it, which is repeated.
    if split is None or split.parts != before.parts:
        raise changed_since(split, before.edition, where=where)
    numbered = {
        old: dataclasses.replace(new, edition=number)
        for number, (old, new) in enumerate(made.items(), split.last_edition + 1)
    }
    parts = [numbered.get(part.edition, part) for part in split.parts]
    return _of_parts(split, parts, keep=True)


def with_columns(
    split: Split,
    made: Mapping[int, Mapping[str, Any]],
    of: Mapping[int, str],
    write: Write,
) -> Split:
    """Returns a split with columns beside the records of its editions.

    The editions stay, in kept states too.

    Args:
        split: The split as it is.
        made: The columns of each edition, as `Split.columns` has them.
        of: The `shards_digest` of each edition that they belong to.
        write: What made them, which may replace others of their names.

    Raises:
        StorageChangedError: The split has other editions by now, or other columns.
    """
    there = {part.edition: part for part in split.parts}
    if {number: part.shards_digest for number, part in there.items()} != of:
        raise StorageChangedError(
            "another command has changed the split while this one ran",
            where=write.where,
            expected=f"editions {', '.join(map(str, of))} as they were",
            got=f"editions {', '.join(map(str, split.numbers))}",
            cure="run this command again: it attaches the columns to these",
        )
    changed = {}
    for number, columns in made.items():
        known = there[number].columns
        taken = [n for n in columns if n in known and known[n] != columns[n]]
        if taken and not write.replaces:
            raise StorageChangedError(
                "another command has attached a column of this name meanwhile",
                where=write.where,
                got=f"column {taken[0]} of edition {number:,}",
                cure="run this command again, with --overwrite to replace the column",
            )
        both = {**known, **columns}
        changed[number] = dataclasses.replace(there[number], columns=both)
    return _changed_parts(split, changed)


def rolled_back(split: Split, edition: int) -> Split:
    """Returns a split's state in which an edition was the newest; keeps all states.

    Raises:
        IndexError: No such edition is known.
    """
    return _of_parts(split, split.until(edition).parts, keep=True)


def without_replaced(split: Split) -> Split:
    """Returns a split without its replaced states."""
    return dataclasses.replace(split, replaced=())


def _of_parts(split: Split, parts: Sequence[Split], *, keep: bool) -> Split:
    new = Split.of_editions(parts)
    states = [*split.replaced, split.alone] if keep else split.replaced
    return dataclasses.replace(
        new,
        # The beginning of a state need not be kept beside it.
        replaced=tuple(state for state in states if not _begins_with(new, state)),
        last_edition=split.last_edition,
    )


def _begins_with(split: Split, state: Split) -> bool:
    """Returns whether a state is a beginning of a split, and need not be kept."""
    try:
        return split.until(state.edition) == state
    except IndexError:
        return False


def _changed_parts(split: Split, changed: Mapping[int, Split]) -> Split:
    """Returns a split with some editions changed, in all of its states."""

    def renewed(state: Split) -> Split:
        parts = (changed.get(part.edition, part) for part in state.parts)
        return Split.of_editions([*parts])

    return dataclasses.replace(
        renewed(split),
        replaced=tuple(map(renewed, split.replaced)),
        last_edition=split.last_edition,
    )
