"""The marker of an unfinished write: it names the writer that a split belongs to.

Before the commit, `dataset.json` says nothing of a split. The marker does: a writer
stores it before its first shard, and looks for it before each shard is published and
before the commit. A writer that finds another one has lost the output.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.errors import JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.read_manifest import read_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import Content
from gristmill.dataset.storage.lookup import storage_for

_OFFICIAL = {"writer": "official", "versions": ""}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteMarker:
    """The marker of one write.

    Attributes:
        output: The directory that is written to.
        name: The dataset's name.
        split: The split.
        fingerprint: What tells this write from all others.
        dataset: The dataset's directory: the output, or the one that it is in.
    """

    output: str
    name: str
    split: str
    fingerprint: str
    dataset: str

    @property
    def path(self) -> str:
        """Where the marker is, of this write or of another one."""
        return layout.join(self.output, layout.write_path(self.name, self.split))

    def load(self) -> Content | None:
        """Reads the marker that is there, None if there is none."""
        return storage_for(self.output).load(self.path)

    def is_own(self, found: Content | None) -> bool:
        """Tells whether a marker is that of this write."""
        if found is None:
            return False
        try:
            fields: dict[str, Any] = json.loads(found.data)
        except ValueError:
            return False
        return fields.get("fingerprint") == self.fingerprint

    def made(self, split: Split | None) -> bool:
        """Tells whether a committed split is what this write made."""
        return split is not None and split.source.get("write") == self.fingerprint

    def store(self, *, options: Mapping[str, Any], replaces: str) -> None:
        """Writes the marker; raises StorageChangedError if another write has begun.

        Args:
            options: What decides the bytes of the shards, as plain values.
            replaces: The version of the marker that is there, "" for none.
        """
        fields = {"fingerprint": self.fingerprint, "options": options}
        storage_for(self.output).write(
            self.path, json.dumps(fields, indent=2).encode() + b"\n", replaces=replaces
        )

    def remove(self, version: str) -> None:
        """Deletes the marker; raises StorageChangedError if it has another version."""
        storage_for(self.output).delete(self.path, version=version)

    def check_current(self) -> str:
        """Raises JobChangedError if another write has taken over the output.

        Returns:
            The version of the marker that says so, "" where the write is committed.
        """
        found = self.load()
        if found is not None and self.is_own(found):
            return found.version
        manifest = read_manifest(self.dataset)
        # A worker that repeats its work after the commit does no harm.
        if manifest is None or not self.made(manifest.splits.get(self.split)):
            raise JobChangedError(
                "another write has taken over the output",
                where=f"{self.dataset}, split {self.split}",
                expected=f"write {self.fingerprint}",
                cure="run one write at a time into one output",
            )
        return ""


# What it means that a digest differs, whose own characters say nothing.
_DIGESTED = {
    "digest": "the tokenizer has other code or files",
    "map_code_digest": "the file with the --map function was edited",
}


def option_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns a line for each option that differs."""
    found = []
    # Tokenizers have up to thousands of special tokens, and a digest that differs.
    for name in sorted((old.keys() | new.keys()) - {"special_ids"}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            if name == "writer":  # Not named where it is the official one.
                before, after = _OFFICIAL | before, _OFFICIAL | after
            found += [f"{name}.{line}" for line in option_differences(before, after)]
        elif before != after and isinstance(before or after, dict):
            was, now = ("given" if side else "not" for side in (before, after))
            found.append(f"{name} was {was}, is {now}")
        elif before != after and before and after and name in _DIGESTED:
            found.append(f"{name} changed: {_DIGESTED[name]}")
        elif before != after:
            found.append(f"{name} was {before!r}, is {after!r}")
    return found
