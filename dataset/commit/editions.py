"""Editions of a split: their numbers, and changes of the split that they make.

Numbers are never reused, so no file of an edition has the name of an earlier file.
Files that name or describe one count, beside what `dataset.json` says.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.commit.listings import walk
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.kinds import (
    COLUMN,
    DESCRIBING,
    JOB,
    PARTS,
    TABLE,
    WRITE,
    Kind,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for

REMOVAL_FORMAT = "gristmill removal"  # Key in the description of unfinished work.


def fingerprint_of(document: bytes) -> str | None:
    """Returns the fingerprint in a description of work, None if it cannot be read."""
    try:
        return str(json.loads(document)["fingerprint"])
    except (KeyError, TypeError, ValueError):
        return None


def is_removal(description: bytes) -> bool:
    """Returns whether a description of unfinished work is that of a removal."""
    try:
        return bool(json.loads(description)["format"] == REMOVAL_FORMAT)
    except (KeyError, TypeError, ValueError):
        return False


def next_edition(output: str, name: str, split: str, there: Split) -> int:
    """Returns the number of the next edition of a split that is there.

    Numbers are left out that have a table and no description: an index may be
    committing them.
    """
    storage, edition = storage_for(output), there.last_edition + 1
    while True:
        key = layout.edition_key(split, edition)
        table, *begun = (
            layout.join(output, path(name, key))
            for path in (layout.table_path, layout.job_path, layout.write_path)
        )
        if storage.stat(table) is None or any(storage.stat_all(begun)):
            return edition
        edition += 1


def last_described(output: str, name: str, split: str) -> int:
    """Returns the greatest number of an edition that any file describes, or 0."""
    described = walk(output, DESCRIBING, layout.parts_of(name, split))
    return max((layout.edition_in(found.parts) for found in described), default=0)


def last_begun(output: str, name: str, split: str) -> int:
    """Returns the greatest number of an edition that any file is named by, or 0."""
    found = files_by_edition(output, name, split)
    return max((edition for edition, _ in found), default=0)


def files_by_edition(output: str, name: str, split: str) -> Iterator[tuple[int, str]]:
    """Yields what names an edition of a split, in the dataset, with its number."""
    for one in walk(output, (*DESCRIBING, COLUMN), layout.parts_of(name, split)):
        yield layout.edition_in(one.parts), one.path
    prefix = layout.shard_prefix(name, split)
    for info in storage_for(output).scan(output, prefix=prefix):
        file = layout.base_name(info.path)
        yield layout.edition_of(file, name, split), file
    for edition, tree in part_trees(output, name, split).items():
        yield edition, layout.base_name(tree)


def part_trees(output: str, name: str, split: str) -> dict[int, str]:
    """Returns the directories of a split's unfinished files, by edition."""
    found, own = {}, layout.join(output, "")
    place = layout.temporary_dir("", name, split)
    for info in storage_for(output).scan(output, deep=True, prefix=place):
        directory = info.path.removeprefix(own).partition("/")[0]
        parts = PARTS.parse(f"{directory}/", NAME=name, SPLIT=split)
        if parts is not None:
            found[layout.edition_in(parts)] = own + directory
    return found


def first_edition(
    output: str, name: str, split: str, *, damaged: bool
) -> tuple[int, frozenset[int]]:
    """Returns the number for a split that is not there, and those of strangers.

    Where `dataset.json` is damaged, nobody knows which numbers it has given out.
    """
    storage = storage_for(output)
    paths = layout.job_path(name, split), layout.write_path(name, split)
    begun_first = any(storage.stat_all([layout.join(output, path) for path in paths]))
    if begun_first and not damaged:
        return 1, frozenset()
    described: dict[int, set[Kind]] = {}
    for one in walk(output, DESCRIBING, layout.parts_of(name, split)):
        described.setdefault(layout.edition_in(one.parts), set()).add(one.kind)
    # The marker of a write goes at the commit, a table comes shortly before it.
    begins = {WRITE} if damaged else {WRITE, JOB}
    given_out = {
        edition
        for edition, kinds in described.items()
        if TABLE in kinds and kinds.isdisjoint(begins)
    }
    begun = {
        edition
        for edition, kinds in described.items()
        if not kinds.isdisjoint((JOB, WRITE))
    } - given_out
    prefix = layout.shard_prefix(name, split)
    found = {
        layout.edition_of(layout.base_name(info.path), name, split)
        for info in storage.scan(output, prefix=prefix)
    }
    last = max(found - begun | given_out, default=0)
    edition = min((number for number in begun if number > last), default=last + 1)
    return edition, frozenset(found - begun)


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
    bare = same and dataclasses.replace(same, columns=made.columns)
    if same is not None and (bare == made or is_same(same, made)):
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


def with_columns(
    split: Split,
    made: Mapping[int, Mapping[str, Any]],
    of: Mapping[int, str],
    *,
    replaces: bool = False,
) -> Split:
    """Returns a split with columns beside the records of its editions.

    The editions stay, also in the states that are kept.

    Args:
        split: The split as it is.
        made: The columns of each edition, as `Split.columns` has them.
        of: The `shards_digest` of each edition to which they belong.
        replaces: Whether they may take the places of others of their names.

    Raises:
        StorageChangedError: The split has other editions by now, or other columns.
    """
    there = {part.edition: part for part in split.parts}
    if {number: part.shards_digest for number, part in there.items()} != of:
        raise _other_editions(split, [*of])
    for number, columns in made.items():
        known = there[number].columns
        taken = [n for n in columns if n in known and known[n] != columns[n]]
        if taken and not replaces:
            raise StorageChangedError(
                "another command has attached a column of this name meanwhile",
                got=f"column {taken[0]} of edition {number:,}",
                cure="run this command again, with --overwrite to replace the column",
            )

    def changed(part: Split) -> Split:
        columns = {**part.columns, **made.get(part.edition, {})}
        return dataclasses.replace(part, columns=columns)

    return _changed_parts(split, changed)


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
    def renewed(part: Split) -> Split:
        if part.edition != made.edition:
            return part
        # Their readers refuse other records.
        return dataclasses.replace(made, columns=part.columns)

    return _changed_parts(split, renewed)


def _changed_parts(split: Split, change: Callable[[Split], Split]) -> Split:
    def renewed(state: Split) -> Split:
        return Split.of_editions([*map(change, state.parts)])

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


def _other_editions(split: Split, expected: Sequence[int]) -> StorageChangedError:
    return StorageChangedError(
        "another command has changed the split while this one ran",
        expected=f"editions {', '.join(map(str, expected))} as they were",
        got=f"editions {', '.join(map(str, split.numbers))}",
        cure="run this command again: it attaches the columns to these",
    )
