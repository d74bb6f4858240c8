"""Planning a removal: which editions and shards of a split hold the records."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.commit.write import Write, next_write
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.splits import Split

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
    def key(self) -> str:
        """The `layout.write_key` under which the work is described."""
        return self.editions[0].write.key

    @property
    def records(self) -> int:
        """How many records are removed."""
        return sum(len(one.records) for one in self.editions)

    @property
    def fingerprint(self) -> str:
        """The id of its first write."""
        return self.editions[0].write.id


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
