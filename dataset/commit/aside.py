"""The directory where a split is made that is to replace another one.

What can be read stays as it is until the new files are finished. They are made in a
directory of their own, inside the dataset and laid out alike. It belongs to one writer
at a time: the last one that began, until its files are exchanged for the old ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable

from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.errors import (
    InputError,
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.base import Content, FileInfo
from gristmill.dataset.storage.lookup import storage_for

_TRIES = 5
_PLAINLY = 0.9  # Of what is expected: it is an estimate.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aside:
    """The directory of one writer, for one split.

    Attributes:
        dataset: The dataset's directory.
        name: The dataset's name.
        split: The split.
        fingerprint: What tells this writer from all others.
    """

    dataset: str
    name: str
    split: str
    fingerprint: str

    @property
    def path(self) -> str:
        """The directory."""
        return layout.aside_dir(self.dataset, self.name, self.split)

    @property
    def _owner_path(self) -> str:
        return layout.join(self.path, layout.OWNER_JSON)

    def check_space(self, expected_bytes: int | None) -> None:
        """Checks that the new files have room beside the old ones, where that is known.

        Args:
            expected_bytes: The least size that they should have, None if unknown.

        Raises:
            StorageError: There is plainly not enough space.
        """
        storage = storage_for(self.dataset)
        free = storage.free_bytes(self.dataset)
        if free is None or expected_bytes is None:
            return
        made = sum(info.size_bytes for info in storage.list_tree(self.path))
        if free + made < _PLAINLY * expected_bytes:
            raise StorageError(
                "not enough space for the new split beside the old one",
                where=f"{self.dataset}, split {self.split}",
                expected=f"about {expected_bytes:,} bytes, as the old one took",
                got=f"{free:,} bytes free" + (f", {made:,} made already" * bool(made)),
                cure="free some space, or choose another output; to do without the old "
                "split, delete it first",
            )

    def take(self) -> None:
        """Takes possession, and deletes what another writer has made there.

        Of several writers at once one takes it last, and the others are told when they
        publish a shard, or commit.

        Raises:
            InputError: It is a link: what it leads to is not ours to delete.
            StorageChangedError: Another one has taken it at this moment.
        """
        if os.path.islink(self.path):
            raise InputError(
                "a link is in the place of the directory for new files",
                where=self.path,
                got=f"a link to {os.path.realpath(self.path)}",
                cure="delete the link; if the new files are to be on another disk, "
                "convert into a directory there",
            )
        storage = storage_for(self.dataset)
        data = json.dumps({"fingerprint": self.fingerprint}).encode() + b"\n"
        for _ in range(_TRIES):
            # In this order: nothing is listed that this very writer makes, in another
            # process.
            stale = storage.list_tree(self.path)
            owner = storage.load(self._owner_path)
            own = self._is_own(owner)
            if not own:
                version = "" if owner is None else owner.version
                storage.write(self._owner_path, data, replaces=version)
            if self._is_free(fence=owner is not None and not own):
                self._clear(() if own else stale)
                return
            # The one before has committed: its files are on their way.
            finish_exchange(self.dataset)
        raise self._changed()

    def check(self) -> None:
        """Checks that the directory still belongs to this writer.

        Raises:
            JobChangedError: Another one has taken it.
        """
        if not self._is_own(storage_for(self.dataset).load(self._owner_path)):
            raise JobChangedError(
                "another conversion has taken over the output",
                where=f"{self.dataset}, split {self.split}",
                expected=f"job {self.fingerprint}",
                cure="run one conversion at a time into one output",
            )

    def clear(self) -> None:
        """Deletes what was made there."""
        self._clear(storage_for(self.dataset).list_tree(self.path))

    def _clear(self, files: Iterable[FileInfo]) -> None:
        """Deletes what another writer has made, and not what it is at."""
        storage = storage_for(self.dataset)
        unfinished = layout.temporary_dir(self.path, self.name, self.split)
        keep = self._owner_path, layout.join(unfinished, "")
        storage.delete_all(info for info in files if not info.path.startswith(keep))
        storage.delete_tree(unfinished)

    def _is_own(self, owner: Content | None) -> bool:
        try:
            fields = json.loads(owner.data) if owner is not None else {}
        except ValueError:
            return False
        return isinstance(fields, dict) and (
            fields.get("fingerprint") == self.fingerprint
        )

    def _is_free(self, *, fence: bool) -> bool:
        """Tells whether no commit moves the files of this directory, nor will.

        Args:
            fence: Whether there was an owner, who may be about to commit. A commit
                names the version of `dataset.json` that it saw before it looked whether
                the directory is its own. So that version goes: the same bytes are
                written again.
        """
        storage = storage_for(self.dataset)
        place = layout.join(self.dataset, layout.DATASET_JSON)
        for _ in range(_TRIES):
            found = storage.load(place)
            manifest = None
            if found is not None:
                with contextlib.suppress(InvalidDatasetError):
                    manifest = Manifest.decode(found.data, where=place)
            if found is None or manifest is None:
                # Files of another program are replaced. Who commits there looks for
                # all new files first.
                return True
            exchange = manifest.exchange
            if exchange is not None and self.split in exchange.aside:
                return False
            if not fence:
                return True
            with contextlib.suppress(StorageChangedError):
                storage.write(place, found.data, replaces=found.version)
                return True
        raise self._changed()

    def _changed(self) -> StorageChangedError:
        return StorageChangedError(
            "the dataset was changed several times while this command began",
            where=self.dataset,
            cure="run one job at a time into one output, then run this one again",
        )
