"""A write: its id, which is in the names of its files, and its description.

The id is a hash of all that decides the bytes of a write. So two different writes never
have a file in common, and the same one finds what it has finished, whatever became of
its process. The number of an edition is given by the commit.

A split's first write has the names that TFDS gives to shards, without an id: whoever
creates the description that has no id in its name has these names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

from gristmill.dataset.base.errors import (
    InputError,
    JobChangedError,
    StorageChangedError,
)
from gristmill.dataset.commit.listings import walk
from gristmill.dataset.commit.ownership import check_dataset_name, check_no_strangers
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import JOB
from gristmill.dataset.metadata.manifest import (
    Manifest,
    read_replaced_manifest,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import stat_all, storage_for
from gristmill.dataset.storage.paths import is_remote

DAMAGED = -1  # In the place of an edition: `dataset.json` cannot be read.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write:
    """A write of one split.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name.
        split: The split.
        id: 16 hex digits; "" for one that has no output yet.
        mark: The id, as names have it; "" where they are TFDS's plain names.
        base: The newest edition of the split when it began, 0 for no split; `DAMAGED`
            if unknown.
        replaces: Whether it replaces what was there.
    """

    output: str
    name: str
    split: str
    id: str = ""
    mark: str = ""
    base: int = 0
    replaces: bool = False

    @property
    def key(self) -> str:
        """The `layout.write_key` in the names of its files."""
        return layout.write_key(self.split, self.mark)

    @property
    def where(self) -> str:
        """The split, for messages."""
        return f"{self.output}, split {self.split}"

    @property
    def description(self) -> str:
        """The path of the file that describes it."""
        return layout.join(self.output, layout.job_path(self.name, self.key))

    def temporary(self) -> AbstractContextManager[str]:
        """Gives a local path for a shard that is to be published."""
        directory = layout.temporary_dir(self.output, self.name, self.key)
        return storage_for(self.output).temporary(directory)

    def describe(self, fields: Mapping[str, Any]) -> Write:
        """Writes the description; returns the write with its final file names.

        Args:
            fields: Further fields, as plain values.
        """
        about = {"fingerprint": self.id, "name": self.name, "split": self.split}
        document = about | dict(fields)
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        storage, place = storage_for(self.output), self.description
        found = storage.load(place)
        own = found is not None and id_in(found.data) == self.id
        try:
            storage.write(
                place,
                # Names of files can hold bytes that are not UTF-8: as in the manifest.
                text.encode("utf-8", "backslashreplace"),
                # The same write may have other options now that decide no bytes.
                replaces=found.version if found is not None and own else "",
            )
        except StorageChangedError:
            if self.mark:
                raise
            # Another write has taken the plain names at this moment.
            return dataclasses.replace(self, mark=self.id).describe(fields)
        return self

    def check_current(self) -> None:
        """Raises JobChangedError if the write was given up."""
        self.check_not_spent(read_replaced_manifest(self.output)[0])

    def check_not_spent(self, manifest: Manifest) -> None:
        """Raises JobChangedError if a dataset has given up the write."""
        if self.id in manifest.spent:
            raise JobChangedError(
                "this write was given up: its files may be deleted",
                where=self.where,
                got=f"write {self.id} among those that gristmill clean --unfinished, "
                "or what replaced it, has given up",
                cure="run the same command again: it starts over",
            )


def id_in(description: bytes) -> str | None:
    """Returns the id in the description of a write, None if it cannot be read."""
    try:
        return str(json.loads(description)["fingerprint"])
    except (KeyError, TypeError, ValueError):
        return None


def id_of(*values: Any) -> str:
    """Returns 16 hex digits that identify plain values."""
    text = json.dumps(values)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def write_ids(*decides: Any) -> Iterator[str]:
    """Yields the ids of a write: the first, then those to use after it was given up.

    Args:
        decides: All that decides the bytes, as plain values.
    """
    for times in itertools.count():
        yield id_of(*decides, times)


class Output(NamedTuple):
    """An output as it is before a write.

    Attributes:
        write: The write, without an id.
        manifest: The dataset; `NO_DATASET` if there is none that can be read.
        damaged: The version of a `dataset.json` that cannot be read; "" for none.
    """

    write: Write
    manifest: Manifest
    damaged: str = ""

    @classmethod
    def read(cls, write: Write, *, replaces: bool) -> Self:
        """Returns the output of a write.

        Args:
            write: The write, without an id.
            replaces: Whether an unreadable dataset will be replaced, and is no error.

        Raises:
            InputError: It is a file, or holds a dataset of another name.
        """
        output = write.output
        if not is_remote(output) and os.path.isfile(output):
            raise InputError(
                "the output is a file",
                where=output,
                expected="a directory, which is created",
                got=f"a file of {os.path.getsize(output):,} bytes",
                cure="give another path; commands take their last argument for the "
                "output",
            )
        read = read_replaced_manifest if replaces else read_versioned_manifest
        manifest, version = read(output)
        if manifest.name:
            check_dataset_name(output, manifest, write.name)
        return cls(write, manifest, "" if manifest.name else version)

    @property
    def there(self) -> Split | None:
        """The split that is there."""
        return self.manifest.splits.get(self.write.split)

    @property
    def base(self) -> int:
        """The newest edition of the split, as `Write.base` has it."""
        if self.there is not None:
            return self.there.edition
        return DAMAGED if self.damaged else 0

    def next_write(
        self,
        content: str,
        *,
        replaces: bool = False,
        plain: bool = True,
        shards: Collection[str] = (),
    ) -> Write:
        """Returns the write to make something.

        It has the same id each time, and the next one once what it wrote was given up
        or is no longer in the split.

        Args:
            content: A digest of all that decides the bytes.
            replaces: Whether it replaces what the split has. Files of unknown origin
                with TFDS's plain names are then no error, and stay.
            plain: Whether it may have TFDS's plain names.
            shards: Its shards, if it has these.

        Raises:
            InputError: There are files of unknown origin with these names, and it
                replaces nothing.
        """
        base, there, used = self.base, self.there, self.manifest.spent
        decides: list[Any] = [self.write.split, content]
        if there is not None:
            used |= there.writes
            if replaces:
                decides += base, there.shards_digest
        id_ = next(one for one in write_ids(*decides) if one not in used)
        write = dataclasses.replace(
            self.write,
            id=id_,
            mark="" if plain and there is None else id_,
            base=base,
            replaces=replaces and base != 0,
        )
        if write.mark or _is_free(write, shards, over=replaces):
            return write
        return dataclasses.replace(write, mark=id_)


def _is_free(plain: Write, shards: Collection[str], *, over: bool) -> bool:
    """Returns whether TFDS's plain names are free; raises as `next_write` does."""
    output, name, split = plain.output, plain.name, plain.split
    found = storage_for(output).load(plain.description)
    if found is not None:
        return id_in(found.data) == plain.id
    if any(stat_all([layout.join(output, p) for p in layout.split_paths(name, split)])):
        return False
    try:
        check_no_strangers(output, name, split, shards=shards)
    except InputError:
        if not over:
            raise
        return False
    return True


def described_writes(output: str, name: str, split: str) -> Iterator[str]:
    """Yields the `layout.write_key` of each write of a split that is described."""
    for found in walk(output, (JOB,), layout.parts_of(name, split)):
        yield layout.key_in(found.parts)


# Meaning of a changed digest, whose own characters say nothing.
_DIGESTED = {
    "digest": "the tokenizer has other code or files",
    "map_code_digest": "the file with the --map function was edited",
}

# How many shards a plan makes, by its kind.
_PLANS = {
    "match_shards": "a shard for each file",
    "num_shards": "{value:,} shards",
    "shard_bytes": "{value:,} bytes of input a shard",
}


def option_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns a line for each option that differs."""
    found = []
    # Tokenizers have up to thousands of special tokens, and a digest that differs.
    for name in sorted((old.keys() | new.keys()) - {"special_ids"}):
        before, after = (_plan_text(one.get(name)) for one in (old, new))
        if isinstance(before, dict) and isinstance(after, dict):
            found += [f"{name}.{line}" for line in option_differences(before, after)]
        elif before != after and isinstance(before or after, dict):
            was, now = ("given" if side else "not" for side in (before, after))
            found.append(f"{name} was {was}, is {now}")
        elif before != after and before and after and name in _DIGESTED:
            found.append(f"{name} changed: {_DIGESTED[name]}")
        elif before != after and name == "plan":
            found.append(f"the plan was {before}, is {after}")
        elif before != after:
            found.append(f"{name} was {before!r}, is {after!r}")
    return found


def _plan_text(option: Any) -> Any:
    """Returns a plan of shards in words, and any other option unchanged."""
    is_plan = isinstance(option, dict) and option.get("kind") in _PLANS
    return _PLANS[option["kind"]].format(**option) if is_plan else option
