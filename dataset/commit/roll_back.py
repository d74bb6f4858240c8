"""Going back to an earlier state of a split: one write of `dataset.json`."""

from __future__ import annotations

import dataclasses

from gristmill import __version__
from gristmill.dataset.base.errors import StorageMissingError
from gristmill.dataset.commit.commit import commit
from gristmill.dataset.commit.editions import rolled_back
from gristmill.dataset.commit.garbage import delete_leftovers
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import (
    chosen_split,
    not_a_dataset,
    state_of,
)
from gristmill.dataset.metadata.splits import Split


def roll_back(output: str, split: str, edition: int) -> Manifest:
    """Makes a split what it was when an edition was the newest.

    The state that it has now is kept, to go back to.

    Returns:
        The dataset as it is then.

    Raises:
        NotADatasetError: There is no dataset.
        InputError: It has no such split, or the edition is not known.
        StorageMissingError: A file of the edition is gone.
        StorageChangedError: Other commands commit all the time.
    """

    def change(old: Manifest | None) -> Manifest:
        if old is None:
            raise not_a_dataset(output)
        there = old.splits[chosen_split(output, old, split)]
        state_of(output, there, edition)  # Raises where there is none.
        new = rolled_back(there, edition)
        if new == there:
            return old
        _check_files(output, split, new)
        made = {**old.splits, split: new}
        return dataclasses.replace(
            old, splits=made, created_by=f"gristmill {__version__}"
        )

    manifest = commit(output, change)
    delete_leftovers(output, manifest.name, ())
    return manifest


def _check_files(output: str, name: str, split: Split) -> None:
    for part in split.parts:
        findings = check_split(output, part)
        if findings:
            raise StorageMissingError(
                "a file of the edition to go back to is not there any more",
                where=f"{output}, split {name}",
                got=findings.summary,
                cure="restore it from a copy, or choose another edition that "
                "`gristmill inspect` shows",
            )
