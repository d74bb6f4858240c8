"""The marker of an unfinished write: it names the writer that a split belongs to.

Before the commit, `dataset.json` says nothing of a split. The marker does: a writer
stores it before its first shard, and looks for it before each shard is published and
before the commit. A writer that finds another one has lost the output.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteMarker:
    """The marker of one write.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name.
        split: The edition that is written, by its `layout.edition_key`.
        fingerprint: What tells this write from all others.
        repeats: Whether work that is done again gives the same bytes. A loop can give
            other records each time.
    """

    output: str
    name: str
    split: str
    fingerprint: str
    repeats: bool = True

    @property
    def file(self) -> str:
        """Where the marker is, of this write or of another one, in the dataset."""
        return layout.write_path(self.name, self.split)

    def made(self, split: Split | None) -> bool:
        """Returns whether a committed split is what this write made."""
        return split is not None and split.source.get("write") == self.fingerprint

    def store(self, *, options: Mapping[str, Any], replaces: str) -> None:
        """Writes the marker; raises StorageChangedError if another write has begun.

        Args:
            options: What decides the bytes of the shards, as plain values.
            replaces: The version of the marker that is there, "" for none.
        """
        fields = {"fingerprint": self.fingerprint, "options": options}
        path = layout.join(self.output, self.file)
        data = json.dumps(fields, indent=2).encode() + b"\n"
        storage_for(self.output).write(path, data, replaces=replaces)

    def check_current(
        self, there: Split | None = None, *, version: str | None = None
    ) -> str:
        """Raises JobChangedError if another command has the edition, or has made it.

        Args:
            there: The split as it is, where that was read.
            version: The version of the marker that is expected; None for any. An equal
                write may have stored it again, and deleted what was finished.

        Returns:
            The version of the marker.
        """
        begun, found = BegunWrite.load(self.output, self.name, self.split)
        split, edition = layout.parse_edition_key(self.split)
        free = there is None or there.last_edition < edition
        own = begun is not None and begun.fingerprint == self.fingerprint
        if free and own and version in (None, found):
            return found
        manifest = read_manifest(self.output)
        there = None if manifest is None else manifest.splits.get(split)
        # A worker that repeats its work after the commit does no harm.
        if self.repeats and there and self.made(there.known.get(edition)):
            return found
        if there is not None and there.last_edition >= edition:
            raise JobChangedError(
                "the output holds this split already, by another command",
                where=f"{self.output}, split {split}",
                got=f"edition {there.last_edition:,}, which was committed meanwhile",
                cure="choose another split or output, or replace it with "
                "overwrite=True",
            )
        raise JobChangedError(
            "another write has taken over the output",
            where=f"{self.output}, split {split}",
            expected=f"write {self.fingerprint}",
            cure="run one write at a time into one output",
        )


class BegunWrite(NamedTuple):
    """A write that has begun an edition, as its marker describes it.

    Attributes:
        fingerprint: What tells it from all others.
        options: What decides the bytes of its shards, as plain values.
        where: The marker, for messages.
    """

    fingerprint: str
    options: Mapping[str, Any]
    where: str

    @property
    def parts(self) -> bool:
        """Whether a `Writer` has begun it, and not a pipeline."""
        return "parts" in self.options

    @classmethod
    def load(cls, output: str, name: str, split: str) -> tuple[Self | None, str]:
        """Returns the write that has begun an edition, and the version of its marker.

        None if there is no marker, or one that cannot be read; "" if there is none.

        Args:
            output: The dataset's directory.
            name: Its name.
            split: The edition, by its `layout.edition_key`.
        """
        where = layout.join(output, layout.write_path(name, split))
        content = storage_for(output).load(where)
        if content is None:
            return None, ""
        try:
            fields = json.loads(content.data)
            begun = cls(str(fields["fingerprint"]), {**fields["options"]}, where)
        except (KeyError, TypeError, ValueError):
            return None, content.version
        return begun, content.version


# What it means that a digest differs, whose own characters say nothing.
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
    """Returns a plan of shards in words, and any other option as it is."""
    is_plan = isinstance(option, dict) and option.get("kind") in _PLANS
    return _PLANS[option["kind"]].format(**option) if is_plan else option
