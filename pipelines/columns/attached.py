"""The result of attaching columns, for people and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.pipelines.text.printer import plural

SHOWN = 20
"""Keys of rows or records that a result or an error shows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attached:
    """What was attached.

    Attributes:
        manifest: The dataset as it is now.
        split: The split.
        columns: The types of the columns, by name.
        file_bytes: Size of the files of their values.
        rows: Rows of the tables; None of a function.
        records: Records that have a row.
        missing: Records that have none, or lack a value.
        repeated: Rows with the key of another.
        unmatched: Rows without a record.
        shown: Keys of some of these, by what they lack.
        done_before: Whether the same was attached already.
    """

    manifest: Manifest
    split: str
    columns: Mapping[str, ColumnType]
    file_bytes: int
    rows: int | None = None
    records: int = 0
    missing: int = 0
    repeated: int = 0
    unmatched: int = 0
    shown: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    done_before: bool = False

    @property
    def title(self) -> str:
        """What was done to how many records."""
        records = plural(self.manifest.splits[self.split].records, "record")
        done = "attached before" if self.done_before else "attached"
        names = ", ".join(f"{name} ({kind})" for name, kind in self.columns.items())
        return (
            f"{self.manifest.name}/{self.split}: {names} {done} to {records}; these "
            "stay as they were"
        )
