"""The plan of a removal, and its description beside the dataset."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import (
    InputError,
    JobChangedError,
    StateMismatchError,
    some_of,
)
from gristmill.dataset.commit.editions import newest_edition, stands
from gristmill.dataset.commit.listings import check_no_link
from gristmill.dataset.commit.unfinished import unfinished_files
from gristmill.dataset.commit.write import Write, described_writes, next_write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import DIRECTORIES
from gristmill.dataset.metadata.manifest import Manifest, is_over
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for

Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EditionRemoval:
    """An edition that loses records, and the one that takes its place.

    Attributes:
        base: The edition as it is.
        write: The write of the new one.
        records: int64 [removed], numbers among the records of the edition, rising.
    """

    base: Split
    write: Write
    records: Int64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removal:
    """Records to remove from a split of a dataset.

    Attributes:
        dataset: Its directory.
        name: Its name.
        split: The split.
        before: The split as it is.
        editions: Those that lose records, in the order of their records.
        request: A digest of what was asked for, which tells that it was done before.
    """

    dataset: str
    name: str
    split: str
    before: Split
    editions: tuple[EditionRemoval, ...]
    request: str

    @property
    def records(self) -> int:
        """How many records are removed."""
        return sum(len(one.records) for one in self.editions)

    def check_current(self) -> None:
        """Raises JobChangedError if it was given up."""
        for one in self.editions:
            one.write.check_current()


def plan_removal(
    dataset: str,
    manifest: Manifest,
    split_name: str,
    records: npt.ArrayLike,
    *,
    request: str,
) -> Removal:
    """Sorts records of a split into its editions.

    Args:
        dataset: The dataset's directory.
        manifest: The dataset as it is.
        split_name: The name of the split.
        records: Numbers of records of the split, one and more, in any order.
        request: See `Removal`.

    Raises:
        InputError: There is no such record, or none is given.
    """
    split = manifest.splits[split_name]
    wanted = wanted_of(records)
    bad = wanted[(wanted < 0) | (wanted >= split.records)]
    if len(bad) or not len(wanted):
        raise InputError(
            "no such record" if len(bad) else "no records to remove",
            where=f"{dataset}, split {split_name}",
            expected=f"numbers of records, 0 to {split.records - 1:,}",
            got=f"{bad[0]:,}" if len(bad) else "none",
            cure="give numbers as `gristmill trace` and `head` show them",
        )
    editions: list[EditionRemoval] = []
    first = 0
    for part in split.parts:
        begin, end = np.searchsorted(wanted, [first, first + part.records]).tolist()
        if begin < end:
            own = wanted[begin:end] - first
            about = [request, part.edition, part.shards_digest, _digest(own)]
            write = next_write(
                *(dataset, manifest.name, split_name, json.dumps(about)),
                manifest=manifest,
                replaces=True,
                plain=False,
            )
            editions.append(EditionRemoval(base=part, write=write, records=own))
        first += part.records
    return Removal(
        dataset=dataset,
        name=manifest.name,
        split=split_name,
        before=split,
        editions=tuple(editions),
        request=request,
    )


def wanted_of(records: npt.ArrayLike) -> Int64:
    """Returns the records to be removed in order, each once.

    Raises InputError if they are not given as a list of numbers.
    """
    found = np.asarray(records, np.int64)
    if found.ndim != 1:
        raise InputError(
            "records are given by their numbers",
            expected="a list of numbers",
            got=f"an array of shape {found.shape}",
            cure="give the number of each record once",
        )
    return np.unique(found)


def _digest(records: Int64) -> str:
    return hashlib.sha256(records.astype("<i8").tobytes()).hexdigest()


def describe(removal: Removal) -> None:
    """Describes a removal beside its dataset, the first of its editions last."""
    about = {"request": removal.request, "base": removal.before.edition}
    for one in reversed(removal.editions):
        one.write.describe({"removal": about})


def check_nothing_begun(dataset: str, split: str, removal: Removal | None) -> None:
    """Raises JobChangedError if another command has begun work on a split.

    Its files can hold the records that are to be erased, or their values.

    Args:
        dataset: The dataset's directory.
        split: The split.
        removal: The caller's own work, which may be begun.
    """
    for directory in DIRECTORIES:
        check_no_link(layout.join(dataset, directory), directory)
    own = set() if removal is None else {one.write.key for one in removal.editions}
    found = unfinished_files(dataset, open_manifest(dataset), split, own=own)
    begun = [path for path, _ in found]
    if begun:
        raise JobChangedError(
            "records are not erased as long as work on the split is unfinished",
            where=f"{dataset}, split {split}",
            expected="nothing that could hold them",
            got=some_of(begun),
            cure="repeat the command that has begun it to finish it, or give it up: "
            "gristmill remove with --erase --give-up, or gristmill clean --unfinished",
        )


def check_same_numbers(dataset: str, split: str, request: str) -> None:
    """Raises StateMismatchError if a removal was begun and records were removed since.

    Its numbers are those of other records by now.

    Args:
        dataset: The dataset's directory.
        split: The split.
        request: The digest of what was asked for.
    """
    manifest = open_manifest(dataset)
    there = manifest.splits.get(split)
    for key in described_writes(dataset, manifest.name, split):
        if is_over(manifest, key):
            continue
        path = layout.join(dataset, layout.job_path(manifest.name, key))
        content = storage_for(dataset).load(path)
        try:
            about = json.loads(content.data)["removal"] if content else {}
            begun = about.get("request") == request
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # It is that of another command.
        if begun and not stands(there, about["base"]):
            raise StateMismatchError(
                "the split has changed since this removal was begun",
                where=f"{dataset}, split {split}",
                expected=f"edition {about['base']:,}, whose records have these numbers",
                got=newest_edition(dataset, split),
                cure="give up what was begun with gristmill clean --unfinished, then "
                "give the numbers that records have in the newest edition",
            )


def check_current(write: Write) -> None:
    """Checks that the work on an edition is still wanted.

    Raises:
        JobChangedError: It was given up, or another command has changed the split.
    """
    write.check_current()
    now = open_manifest(write.output).splits.get(write.split)
    if now is None or now.edition != write.base:
        raise JobChangedError(
            "another command has finished this removal, or changed the split",
            where=write.where,
            expected=f"edition {write.base:,}",
            got=newest_edition(write.output, write.split),
            cure="run this command again, one at a time: it says if all is done",
        )
