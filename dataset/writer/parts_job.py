"""What writers of Python loops make together: one split, in one or several parts."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.commit.staged_parts import part_dir
from gristmill.dataset.commit.write_marker import WriteMarker
from gristmill.dataset.errors import InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.provenance import PARTS_FIELD
from gristmill.dataset.storage.lookup import storage_for

_OUTPUT_FIELDS = ("output",)  # They decide no bytes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartsJob:
    """A split to write.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name.
        split: The split.
        parts: How many writers each write a part.
        shard_bytes: Most bytes of records in a shard; a larger record has its own.
        records_per_shard: Most records in a shard; None for no bound.
        writer: How shards are encoded.
        features: What the records hold, as `encode_features` gives it, where known.
    """

    output: str
    name: str
    split: str
    parts: int
    shard_bytes: int
    records_per_shard: int | None
    writer: WriterOptions
    features: Mapping[str, Any] | None

    def options(self) -> dict[str, Any]:
        """Returns what decides the bytes of the dataset, as plain values."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in _OUTPUT_FIELDS
        }
        return fields | {"writer": self.writer.as_dict()}

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits over these options."""
        text = json.dumps(self.options(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def owner(self) -> dict[str, str]:
        """The fields by which an `Aside` and a `WriteMarker` know the job."""
        return {
            "dataset": self.output,
            "name": self.name,
            "split": self.split,
            "fingerprint": self.fingerprint,
        }

    @property
    def aside(self) -> str:
        """The directory that the split is made in."""
        return layout.aside_dir(self.output, self.name, self.split)

    @property
    def marker(self) -> WriteMarker:
        """What describes the job in that directory."""
        return WriteMarker(output=self.aside, **self.owner)

    def part_dir(self, part: int) -> str:
        """Returns the directory of a part."""
        return part_dir(self.aside, part, self.parts)

    def part_table(self, part: int) -> str:
        """Returns where the table of a part is, once it is finished."""
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
    def described(cls, output: str, options: Mapping[str, Any], *, where: str) -> Self:
        """Returns the job that has these options.

        Raises:
            InvalidDatasetError: They are not those of such a job.
        """
        try:
            fields = {
                field.name: options[field.name]
                for field in dataclasses.fields(cls)
                if field.name not in _OUTPUT_FIELDS
            }
            writer = WriterOptions(**{"writer": "official"} | fields.pop("writer"))
            return cls(output=output, writer=writer, **fields)
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidDatasetError(
                "the description of unfinished parts cannot be read",
                where=where,
                got=repr(e),
                cure="begin again with overwrite=True",
            ) from e
