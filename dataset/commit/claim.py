"""The claim: a command takes the number of the next edition of a split, to make it.

Numbers are given out once, so files that are named by a new one are read by nobody, and
belong to one command. That describes its work under the number before it makes a shard:
`job.json` of a conversion, `write.json` of a write. Of several commands that begin at
once, one gets to write the description. It looks for it before it publishes a shard and
before it commits: who finds another one has lost the output.

A later command continues with what it has begun itself. What another one has begun, it
deletes if it may, and replaces.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
)
from gristmill.dataset.commit.editions import first_edition, next_edition
from gristmill.dataset.commit.listings import files_of_shards
from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_no_strangers,
    check_removal,
    committed_shards,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    read_replaced_manifest,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo, changed_error, is_unfinished
from gristmill.dataset.storage.lookup import storage_for, version_of

T = TypeVar("T")

_TRIES = 5
_PLAINLY = 0.9  # Of what is expected: it is an estimate.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """The next edition of a split, and the dataset as it is before.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name.
        split: The split.
        edition: The number.
        manifest: The dataset, None if there is none, or none that can be read.
        version: Version of its `dataset.json`, or "" if there is none.
        strangers: Numbers of editions, by their names, of shards that no command is
            known to have written. They are not part of the dataset, and count as
            replaced by this edition.
    """

    output: str
    name: str
    split: str
    edition: int
    manifest: Manifest | None
    version: str
    strangers: frozenset[int] = frozenset()

    @classmethod
    def next(
        cls, output: str, name: str, split: str, *, overwrite: bool = False
    ) -> Self:
        """Returns the edition that a command is to make.

        Args:
            output: The dataset's directory.
            name: The dataset's name.
            split: The split.
            overwrite: Whether a `dataset.json` that cannot be read counts as none.

        Raises:
            InputError: The output holds a dataset of another name.
        """
        read = read_replaced_manifest if overwrite else read_versioned_manifest
        manifest, version = read(output)
        if manifest is not None:
            check_dataset_name(output, manifest, name)
        there = None if manifest is None else manifest.splits.get(split)
        if there is not None:
            edition = next_edition(output, name, split, there)
            strangers = frozenset[int]()
        else:
            damaged = manifest is None and bool(version)
            edition, strangers = first_edition(output, name, split, damaged=damaged)
        return cls(
            output=output,
            name=name,
            split=split,
            edition=edition,
            manifest=manifest,
            version=version,
            strangers=strangers,
        )

    @property
    def key(self) -> str:
        """The edition, as names of files have it."""
        return layout.edition_key(self.split, self.edition)

    @property
    def there(self) -> Split | None:
        """The split as it is, None if there is none."""
        return None if self.manifest is None else self.manifest.splits.get(self.split)

    @property
    def where(self) -> str:
        """The split, for messages."""
        return f"{self.output}, split {self.split}"

    def check_no_strangers(
        self, *, shards: Collection[str] = (), written: Collection[str] = ()
    ) -> None:
        """Raises InputError if nobody is known to have written a shard that is there.

        Args:
            shards: As in `ownership.check_no_strangers`.
            written: The same.
        """
        key = self.split if self.there is None else self.key
        known = {*written}
        # Without `dataset.json`, `leave_finished` leaves them with their tables.
        for edition in () if self.version else self.strangers:
            path = layout.table_path(self.name, layout.edition_key(self.split, edition))
            table = layout.join(self.output, path)
            with contextlib.suppress(InvalidDatasetError, StorageError):
                data = storage_for(table).read(table)
                known.update(ShardTable.decode(data, where=table).paths)
        where = self.output, self.name, key
        check_no_strangers(*where, shards=shards, written=known)

    def check_no_parts(self, *, cure: str) -> None:
        """Raises JobChangedError if a `Writer` has finished shards of the edition."""
        if any(info.path.endswith(".index") for info in self._parts()):
            raise JobChangedError(
                "the output belongs to an unfinished Writer",
                where=self.where,
                cure=f"finish it first, with resume=True, or {cure}",
            )

    def check_replaceable(self, *, shards: Collection[str] = ()) -> None:
        """Checks that the files of the split may be deleted, as `check_removal` does.

        Args:
            shards: Shards besides those that the split has, and that TFDS's names give
                to it.
        """
        there = committed_shards(self.output, self.manifest, self.split)
        where = self.output, self.name, self.split
        try:
            check_removal(*where, manifest=self.manifest, shards=there.union(shards))
        except StorageMissingError:
            # Another command may have replaced what was read.
            place = layout.join(self.output, layout.DATASET_JSON)
            if (got := version_of(place)) != self.version:
                raise changed_error(place, expected=self.version, got=got) from None
            raise

    def check_space(
        self,
        input_bytes: int,
        options: Mapping[str, Any],
        *,
        alike: Iterable[str],
        input_before: Callable[[Split], int],
    ) -> None:
        """Checks that the edition has room beside those that are there.

        The size that it should have is known from a split that was made alike.

        Args:
            input_bytes: The size of what it is made of.
            options: How it is made.
            alike: Names of options that decide the size.
            input_before: Returns the size of what a split was made of.

        Raises:
            StorageError: There is plainly not enough space.
        """
        free, there = storage_for(self.output).free_bytes(self.output), self.there
        if free is None or there is None:
            return
        try:
            before = there.source["options"]
            if any(before[name] != options[name] for name in alike):
                return
            ratio = there.file_bytes / input_before(there)
        except (KeyError, TypeError, ZeroDivisionError):
            return  # It was made in another way, or is empty.
        expected_bytes = int(ratio * input_bytes)
        made = sum(info.size_bytes for info in self.files())
        if free + made < _PLAINLY * expected_bytes:
            raise StorageError(
                "not enough space for the new split beside the old one",
                where=self.where,
                expected=f"about {expected_bytes:,} bytes, as the old one took",
                got=f"{free:,} bytes free" + (f", {made:,} made already" * bool(made)),
                cure="free some space, or choose another output; to do without the old "
                "split, delete it first",
            )

    def take(
        self,
        store: Callable[[], None],
        *,
        described: Mapping[str, str],
        own: bool = False,
        keep: Callable[[str], bool] = lambda shard: False,
        shards: Collection[str] = (),
    ) -> None:
        """Describes the work, and deletes what another one has made of the edition.

        Args:
            store: Writes the description.
            described: The files that it writes, relative to the dataset, with the
                versions that it replaces, "" for none.
            own: Whether the work is described there already.
            keep: Tells the shards of the work, which replace others themselves.
            shards: Those to delete besides those that TFDS's names give to the edition.

        Raises:
            StorageChangedError: Another command has begun there at this moment, or has
                committed.
        """
        storage = storage_for(self.output)
        paths = layout.split_paths(self.name, self.key)
        # First: nothing is listed that is made by this very work, in another process.
        stale = [*self.files(keep=keep, shards=shards), *self._parts()]
        found = storage.stat_all([layout.join(self.output, path) for path in paths])
        there = {
            path: info
            for path, info in zip(paths, found, strict=True)
            if info is not None
        }
        for path, version in described.items():
            got = there[path].version if path in there else ""
            if got != version:
                raise changed_error(path, expected=version, got=got)
        if not own:
            self._mark_strangers()
            store()
            others = [info for path, info in there.items() if path not in described]
            # In this order: who has not looked for its description by now finds none,
            # and who has cannot commit any more.
            storage.delete_all(i for i in others if i.path in self._descriptions)
            if there:
                fence(self.output, self.version)
            stale += others
            self.settle(described, there.values())
        storage.delete_all(stale)

    def settle(
        self,
        described: Collection[str],
        replaced: Collection[FileInfo] = (),
        *,
        own: bool = False,
    ) -> None:
        """Looks who else has described the edition, once that was done.

        A conversion and a write do so in files of different names, so both may have
        succeeded, and one has to go: the write, which begins again.

        Args:
            described: The files that this command has written.
            replaced: Files that others have written, which it deletes itself.
            own: Whether the work was described there before.

        Raises:
            StorageChangedError: This is the write, or another command has committed.
        """
        storage = storage_for(self.output)
        job, write = self._descriptions
        table = layout.join(self.output, layout.table_path(self.name, self.key))
        found_job, found_write, found = storage.stat_all([job, write, table])
        known = {(info.path, info.version) for info in replaced}
        if found_job is not None and found_write is not None:
            if layout.write_path(self.name, self.key) not in described:
                if (write, found_write.version) not in known:
                    # In the order of `take`.
                    storage.delete(write, version=found_write.version)
                    fence(self.output, self.version)
                    known |= {(table, found.version)} if found else set()
            elif (job, found_job.version) not in known:
                storage.delete(write, version=found_write.version)
                raise changed_error(job, expected="", got=found_job.version)
        if not own:
            self.leave_finished(known)
        # Who committed the edition before this was described knew nothing of it.
        manifest, version = read_replaced_manifest(self.output)
        split = None if manifest is None else manifest.splits.get(self.split)
        if split is not None and split.last_edition >= self.edition:
            place = layout.join(self.output, layout.DATASET_JSON)
            raise changed_error(place, expected=self.version, got=version)

    def leave_finished(self, known: Collection[tuple[str, str]] = ()) -> None:
        """Leaves the number to another command that has finished the edition.

        Where there is no `dataset.json`, nothing stops one that has passed its checks:
        it may commit at any moment what has a table. Nor does anything stop an index,
        which has no description, and looks for those of others. A table without a
        description tells everybody that the number is given out.

        Args:
            known: Path and version of tables whose description this command has
                deleted. Where there is a `dataset.json`, they cannot be committed.

        Raises:
            StorageChangedError: There is a table. Begin again, with the next number.
        """
        storage = storage_for(self.output)
        table = layout.join(self.output, layout.table_path(self.name, self.key))
        found = storage.stat(table)
        if found and not (self.version and (table, found.version) in known):
            descriptions = filter(None, storage.stat_all(self._descriptions))
            # Where there is a table, the parts have their names already.
            storage.delete_all([*descriptions, *self._parts()])
            raise changed_error(table, expected="", got=found.version)

    @property
    def _descriptions(self) -> list[str]:
        paths = layout.job_path, layout.write_path
        return [layout.join(self.output, path(self.name, self.key)) for path in paths]

    def _mark_strangers(self) -> None:
        """Gives them tables: by these whoever deletes what is replaced finds them."""
        storage = storage_for(self.output)
        for edition in sorted(self.strangers):
            key = layout.edition_key(self.split, edition)
            table = layout.join(self.output, layout.table_path(self.name, key))
            if storage.stat(table) is None:
                storage.write(table, b"", replaces="")

    def files(
        self,
        *,
        keep: Callable[[str], bool] = lambda shard: False,
        shards: Collection[str] = (),
    ) -> Iterator[FileInfo]:
        """Yields the files of the shards to which TFDS's names give this edition.

        Args:
            keep: Tells shards to leave out.
            shards: Others to yield as well.
        """
        own = layout.shard_prefix(self.name, self.key)
        # Of millions of files, an edition may have a few.
        for info, shard in files_of_shards(self.output, "" if shards else own):
            named = shard.startswith(own) and (
                layout.edition_of(shard, self.name, self.split) == self.edition
            )
            if shard in shards or (named and not keep(shard)):
                yield info

    def _parts(self) -> list[FileInfo]:
        """Lists what a writer has made of the edition that knows no names yet."""
        place = layout.temporary_dir(self.output, self.name, self.key)
        found = storage_for(self.output).list_tree(place)
        # A process that lives may be at what is not finished. It goes at the commit.
        return [i for i in found if not is_unfinished(i.path.rpartition("/")[2])]


def fence(output: str, version: str | None = None) -> None:
    """Lets a commit fail whose checks have passed: what it names is deleted.

    It names the version of `dataset.json` that it saw before its checks. So that
    version goes: the same bytes are written again.

    Args:
        output: The dataset's directory.
        version: The version of `dataset.json` that is expected; None for any.

    Raises:
        StorageChangedError: There is another version.
    """
    storage = storage_for(output)
    place = layout.join(output, layout.DATASET_JSON)
    found = storage.load(place)
    got = "" if found is None else found.version
    if version not in (None, got):
        raise changed_error(place, expected=version or "", got=got)
    if found is not None:
        storage.write(place, found.data, replaces=found.version)


def again_if_changed(call: Callable[[], T]) -> T:
    """Calls what begins work, again if another command has begun at the same moment.

    That may have been the same work, in another process.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(StorageChangedError):
            return call()
    return call()
