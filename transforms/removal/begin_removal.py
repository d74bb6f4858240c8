"""Beginning a removal: it is planned and described, or found to be done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy.typing as npt

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import InputError, StateMismatchError
from gristmill.dataset.commit.clean import give_up as give_up_work
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.open_manifest import chosen_split, open_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.removal.cut_shard import CutTask, cut_tasks
from gristmill.transforms.removal.describe_removal import (
    check_nothing_begun,
    check_same_numbers,
    describe,
)
from gristmill.transforms.removal.plan_removal import (
    Removal,
    plan_removal,
    wanted_of,
)


class BegunRemoval(NamedTuple):
    """A removal that is described, or has been done already.

    Attributes:
        dataset: The dataset's directory.
        removal: What is to be done; None if it has been done.
        manifest: The dataset as it is.
        split: The name of the split.
        erase: Whether no file is to hold the records then.
    """

    dataset: str
    removal: Removal | None
    manifest: Manifest
    split: str
    erase: bool = False

    def gather(self, gathered: Gathered) -> None:
        """Notes what was begun."""
        gathered.notes["begun"][""] = self


def begin_removal(
    dataset: str,
    records: npt.ArrayLike,
    *,
    split: str | None = None,
    edition: int | None = None,
    request: str | None = None,
    looked_up: bool = False,
    erase: bool = False,
    give_up: bool = False,
) -> BegunRemoval:
    """Plans a removal, and describes it beside the dataset.

    Args:
        dataset: The dataset's directory.
        records: Numbers of records of the split, in any order.
        split: The split; None for the only one.
        edition: The newest edition, whose records are numbered so. None for any: then
            what was removed by these numbers before is not removed again.
        request: A digest of what was asked for; by default of records and edition.
        looked_up: Whether the numbers were looked up in that edition: then they are
            removed though the same was asked for before.
        erase: Whether no file is to hold the records then.
        give_up: Whether to give up first what others have begun on the split.

    Raises:
        NotADatasetError: There is no committed dataset.
        InputError: There is no such split or record, or the split has packed rows.
        JobChangedError: Another command is changing the split, or has begun to, which
            erasing waits for.
        StateMismatchError: The edition is not the newest one, or records have other
            numbers since the same was begun.
    """
    manifest, name = open_split(dataset, split)
    if give_up:
        manifest = give_up_work(dataset, name)
    found = manifest.splits[name]
    if request is None:
        request = request_of(wanted_of(records).tolist(), edition)
    if not looked_up and done_before(found, request):
        if erase:
            check_nothing_begun(dataset, name, None)
        return BegunRemoval(dataset, None, manifest, name, erase)
    if edition not in (None, found.edition):
        raise StateMismatchError(
            "the edition is not the newest one",
            where=f"{dataset}, split {name}",
            expected=f"edition {found.edition:,}",
            got=f"edition {edition:,}",
            cure="give the numbers that records have in the newest edition",
        )
    if not looked_up:
        check_same_numbers(dataset, name, request)
    removal = plan_removal(dataset, manifest, name, records, request=request)
    if erase:
        check_nothing_begun(dataset, name, removal)
    describe(removal)
    return BegunRemoval(dataset, removal, manifest, name, erase)


def open_split(dataset: str, split: str | None) -> tuple[Manifest, str]:
    """Returns a dataset and the split that is to lose records.

    Raises as `begin_removal` does.
    """
    manifest = open_manifest(dataset)
    name = chosen_split(dataset, manifest, split)
    found = manifest.splits[name]
    if found.packed is not None:
        cure = "remove the documents from the inputs, then pack these again"
        if "shards_digest" in found.source:  # The input is a dataset.
            source = found.source["inputs"][0]
            cure = f"run gristmill remove on {source}, then pack it again"
        raise InputError(
            "documents cannot be removed from packed rows",
            where=f"{dataset}, split {name}",
            expected="a dataset of records",
            got="packed rows",
            cure=f"{cure}, with gristmill pack --overwrite",
        )
    return manifest, name


def request_of(asked: list[Any], *more: object) -> str:
    """Returns a digest of what was asked for."""
    text = json.dumps([asked, *more])
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def done_before(split: Split, request: str) -> bool:
    """Returns whether an edition of a split was made by such a request."""
    return any(
        removed.get("request") == request
        for part in split.parts
        for _, removed in part.removals()
    )


def tasks_of(removal: Removal) -> Iterator[CutTask]:
    """Yields a task for each shard that loses records."""
    for one in removal.editions:
        yield from cut_tasks(removal, one, read_table(removal.dataset, one.base))
