"""The split that writers of Python loops make together, in one or more parts.

The number of shards is part of their names, and known when the last part is finished.
So the shards of a part are numbered by themselves until the commit:

```
tmp-c4-train/                     unfinished files of the split
  00001-of-00004/                 the second of four parts
    owner.json                    who makes it
    00000.array_record            its shards
    index/00000.array_record.index
    shards.npz                    their table, written last: the part is finished
```
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.commit.claim import Claim
from gristmill.dataset.commit.write_marker import BegunWrite, WriteMarker
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.parts import PARTS_FIELD
from gristmill.dataset.storage.lookup import storage_for

OWNER_JSON = "owner.json"
_PLACE_FIELDS = ("output", "edition", "taken")  # They decide no bytes.


def staged_name(shard: int) -> str:
    """Returns the name of a shard in the directory of its part."""
    return f"{shard:05d}.array_record"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartsJob:
    """A split to write.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name.
        split: The split.
        parts: How many writers each write a part.
        shard_bytes: Maximum bytes of records in a shard; a larger record has its own.
        records_per_shard: Maximum records in a shard; None for no bound.
        writer: How shards are encoded.
        features: What the records hold, as `encode_features` gives it, where known.
        edition: Number of the edition of the split that it makes.
        taken: The version of its marker when a writer took the output, None for any. An
            equal job that takes it later deletes what was finished before.
    """

    output: str
    name: str
    split: str
    parts: int
    shard_bytes: int
    records_per_shard: int | None
    writer: WriterOptions
    features: Mapping[str, Any] | None
    edition: int = 1
    taken: str | None = None

    def options(self) -> dict[str, Any]:
        """Returns the options that decide the bytes of the dataset, as plain values."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in _PLACE_FIELDS
        }
        return fields | {"writer": dataclasses.asdict(self.writer)}

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits over these options."""
        text = json.dumps(self.options(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        """The edition, as names of files have it."""
        return layout.edition_key(self.split, self.edition)

    @property
    def marker(self) -> WriteMarker:
        """The marker by which the edition belongs to the job."""
        return WriteMarker(
            output=self.output,
            name=self.name,
            split=self.key,
            fingerprint=self.fingerprint,
            repeats=False,
        )

    @property
    def directory(self) -> str:
        """The directory that the parts are in until the commit."""
        return layout.temporary_dir(self.output, self.name, self.key)

    def part_dir(self, part: int) -> str:
        """Returns the directory of a part."""
        return layout.join(self.directory, f"{part:05d}-of-{self.parts:05d}")

    def part_table(self, part: int) -> str:
        """Returns the path of a part's table, once it is finished."""
        return layout.join(self.part_dir(part), "shards.npz")

    def finished_parts(self) -> list[int]:
        """Returns the parts that are finished."""
        paths = [self.part_table(part) for part in range(self.parts)]
        found = storage_for(self.output).stat_all(paths)
        return [part for part, info in enumerate(found) if info is not None]

    @property
    def where(self) -> str:
        """The split, for messages."""
        return f"{self.output}, split {self.split}"

    @property
    def source(self) -> dict[str, Any]:
        """What `dataset.json` says of where the records come from."""
        options = self.options()
        del options["features"]  # They are in `dataset.json` already.
        return {
            "write": self.fingerprint,
            PARTS_FIELD: self.parts,
            "options": options,
        }

    @classmethod
    def described(cls, claim: Claim, begun: BegunWrite) -> Self:
        """Returns the job that has begun an edition.

        Raises:
            InvalidDatasetError: Its options are not those of such a job.
        """
        options = begun.options
        try:
            fields = {
                field.name: options[field.name]
                for field in dataclasses.fields(cls)
                if field.name not in _PLACE_FIELDS
            }
            writer = WriterOptions(**fields.pop("writer"))
            return cls(
                output=claim.output, edition=claim.edition, writer=writer, **fields
            )
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidDatasetError(
                "the description of unfinished parts cannot be read",
                where=begun.where,
                got=repr(e),
                cure="begin again with overwrite=True",
            ) from e
