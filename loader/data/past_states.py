"""The states that a dataset was in before records were removed or appended.

Their files need not be there any more. An edition says of which one it was made by
removing records, and keeps their numbers, so it is known what became of each record.

A state is told by its *depths*: each edition of the dataset has a line, itself first,
then what it was made of, then what that was made of. A state had the edition at some
depth in each of the first lines; those of other lines were appended later.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import InputError, InvalidDatasetError
from gristmill.dataset.metadata.removed import read_removed
from gristmill.loader.base.indices import NOTHING, Removed
from gristmill.loader.base.state_fields import Content
from gristmill.loader.data.dataset import Dataset

Depths: TypeAlias = tuple[int, ...]

_MOST_TRIED = 10_000  # Of joined datasets, whose editions a content does not tell.


class _Edition(NamedTuple):
    number: int
    records: int
    digest: RecordsDigest | None  # None where it is not known.
    lost: Mapping[str, Any] | None  # What the one before it in the line lacks.


class _Line(NamedTuple):
    path: str
    editions: tuple[_Edition, ...]

    def lost(self, before: int, after: int) -> Removed:
        """Returns the part of the edition at one depth that a later one lacks."""
        gone = NOTHING
        for edition in self.editions[before:after:-1]:
            if edition.lost is not None:
                numbers = read_removed(self.path, edition.lost).records
                gone = gone.joined(gone.opened(numbers))
        return gone


class PastStates:
    """The states of a dataset, as far as it knows them.

    Args:
        dataset: It, as it is now.

    Raises:
        InvalidDatasetError: Its records of removals are invalid.
    """

    def __init__(self, dataset: Dataset):
        self._lines = [[*_lines(part)] for part in dataset.parts]

    def at(self, edition: int) -> Depths | None:
        """Returns the state of which an edition was the newest, None for no such."""
        (lines,) = self._lines
        if edition not in _numbers(lines) or _has_next(lines, edition):
            return None
        return _depths(lines, edition)

    def find(self, content: Content) -> Depths | None:
        """Returns the state that had some content, by its count and digest of records.

        None if there was none.
        """
        tried = itertools.islice(self._candidates(content.edition), _MOST_TRIED)
        for depths in tried:
            known = self.content(depths)
            if known.is_same(content._replace(order_digest=None)):
                return depths
        return None

    def content(self, depths: Depths) -> Content:
        """Returns the content of a state. It has no digest of the order."""
        editions = [
            line.editions[depth] for line, depth in zip(self._all, depths, strict=False)
        ]
        digests = [one.digest for one in editions if one.digest is not None]
        known = len(digests) == len(editions)
        return Content(
            max(one.number for one in editions) if len(self._lines) == 1 else None,
            sum(one.records for one in editions),
            RecordsDigest.total(digests).hex if known else None,
            None,
        )

    def lost(self, before: Depths, after: Depths) -> Removed | None:
        """Returns the records of a state that a later one lacks, by their numbers.

        None if it does not follow: what is not removed must be there in its order.
        """
        parts, first = [], 0
        if len(before) > len(after):
            return None
        for line, old, new in zip(self._all, before, after, strict=False):
            if old < new:
                return None
            parts.append(first + line.lost(old, new).numbers)
            first += line.editions[old].records
        return Removed(np.concatenate(parts))

    @property
    def _all(self) -> list[_Line]:
        return [line for lines in self._lines for line in lines]

    def _candidates(self, edition: int | None) -> Iterator[Depths]:
        """Yields states, later ones first, or that of an edition."""
        if edition is not None and len(self._lines) == 1:
            found = self.at(edition)
            yield from [] if found is None else [found]
            return
        states = [
            [*dict.fromkeys(_depths(lines, n) for n in _numbers(lines))]
            for lines in self._lines
        ]
        for count in range(len(states), 0, -1):
            for chosen in itertools.product(*states[:count]):
                # What was appended to a dataset before the last came in between.
                if all(
                    len(depths) == len(lines)
                    for depths, lines in zip(chosen[:-1], self._lines, strict=False)
                ):
                    yield tuple(itertools.chain.from_iterable(chosen))


def removed_since(changed: Dataset, before: Content) -> Removed:
    """Returns the earlier records that a dataset has lost, by their numbers.

    Raises InputError unless it has the others, and then new ones.
    """
    if not isinstance(changed, Dataset):
        raise InputError(
            "not a dataset",
            expected="what gristmill.loader.open returns, or some of them by name",
            got=f"{type(changed).__name__} {changed!r:.100}",
            cure="open it first, by loader.open(path)",
        )
    if len(changed) > before.records and changed.begins_with(before):
        return NOTHING
    removed = _lost_since(changed, before)
    if removed is not None:
        return removed
    if len(changed) <= before.records:
        raise InputError(
            "the dataset has no more records than before",
            where=repr(changed),
            expected=f"more than {before.records:,} records, or an edition that a "
            "removal made of them",
            got=f"{len(changed):,}",
            cure="open the longer dataset, or leave this extension out",
        )
    raise InputError(
        "the dataset does not begin with the records of the one before",
        where=repr(changed),
        expected=f"{before.records:,} records with digest {before.records_digest} "
        f"and order digest {before.order_digest} in its first shards, or an edition "
        "that a removal made of them",
        got="other records, or others first",
        cure="open a newer edition of the same dataset, or join the new one after "
        "it: loader.open([old, new])",
    )


def removed_between(dataset: Dataset, contents: Sequence[Content]) -> Iterator[Removed]:
    """Yields which records each content that a dataset had lost to the next one.

    By their numbers before; none where that is not known, as of what it never had.
    """
    states = PastStates(dataset)
    for before, after in itertools.pairwise(map(states.find, contents)):
        lost = None
        if before is not None and after is not None:
            lost = states.lost(before, after)
        yield NOTHING if lost is None else lost


def _lost_since(changed: Dataset, before: Content) -> Removed | None:
    """Returns the losses of a dataset since it had some content, or None."""
    states = PastStates(changed)
    then, now = states.find(before), states.find(changed.content)
    if then is None or now is None or then == now:
        return None
    same = then == now[: len(then)] and changed.order_digest is not None
    if same or not _had(changed, before):
        return None  # Its shards say that others come first.
    return states.lost(then, now)


def _had(changed: Dataset, before: Content) -> bool:
    """Returns whether an edition that is still kept has some content."""
    edition = before.edition
    return edition is None or changed.as_of(edition).content.is_same(before)


def _numbers(lines: Sequence[_Line]) -> list[int]:
    """Returns the numbers of all editions in lines, the newest first."""
    return sorted({e.number for line in lines for e in line.editions}, reverse=True)


def _has_next(lines: Sequence[_Line], edition: int) -> bool:
    """Returns whether the removal that made an edition also made the next one."""
    bases = {
        later.number: (base.number, (base.lost or {}).get("request"))
        for line in lines
        for later, base in itertools.pairwise(line.editions)
    }
    _, request = bases.get(edition, (0, None))
    following, same = bases.get(edition + 1, (edition, None))
    return request is not None and same == request and following < edition


def _depths(lines: Sequence[_Line], newest: int) -> Depths:
    """Returns the state of which an edition was the newest."""
    depths = []
    for line in lines:
        known = [d for d, one in enumerate(line.editions) if one.number <= newest]
        if not known:
            break
        depths.append(known[0])
    return tuple(depths)


def _lines(dataset: Dataset) -> Iterator[_Line]:
    """Yields the line of each edition of a dataset that is not joined of others."""
    if dataset.committed is None:
        text = dataset.records_digest
        whole = _Edition(0, len(dataset), None if text is None else _digest(text), None)
        yield _Line(dataset.path, (whole,))
        return
    for part in dataset.committed.parts:
        records, digest = part.records, _digest(part.records_digest)
        editions = [_Edition(part.edition, records, digest, None)]
        try:
            for number, lost in part.removals():
                records += int(lost["records"])
                digest = digest + _digest(lost["records_digest"])
                editions.append(_Edition(int(number), records, digest, lost))
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidDatasetError(
                "dataset.json says in an unknown way what was removed",
                where=f"{dataset.path}, edition {part.edition}",
                got=f"{part.removed!r:.200}",
                cure="restore dataset.json from a copy",
            ) from e
        yield _Line(dataset.path, tuple(editions))


def _digest(text: str) -> RecordsDigest:
    return RecordsDigest(high=int(text[:16], 16), low=int(text[16:], 16))
