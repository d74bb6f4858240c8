"""A finding: one thing that is wrong with a dataset, as verifying it lists them."""

from __future__ import annotations

import dataclasses

from gristmill.dataset.errors import (
    FormatVersionError,
    GristmillError,
    InvalidDatasetError,
    StorageError,
)

# What becomes a finding where a file of metadata is read.
UNREADABLE = (InvalidDatasetError, FormatVersionError, StorageError)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a dataset.

    Attributes:
        path: The file, relative to the dataset.
        what: What is wrong, with the record where one is concerned.
        expected: What should be there, "" if there is no more to say.
        got: What is there.
    """

    path: str
    what: str
    expected: str = ""
    got: str = ""

    def __str__(self) -> str:
        facts = [
            f"{label} {fact}"
            for label, fact in (("expected", self.expected), ("got", self.got))
            if fact
        ]
        return f"{self.path}: {self.what}" + (f" ({', '.join(facts)})" if facts else "")


def wrong_size(path: str, expected: int, got: int) -> Finding:
    """Returns what there is to say of a shard of some other size."""
    return Finding(
        path, "shard has the wrong size", expected=f"{expected:,} bytes", got=f"{got:,}"
    )


def finding_of(path: str, error: GristmillError) -> Finding:
    """Returns what an error says of a file of a dataset."""
    return Finding(path, error.what, expected=error.expected or "", got=error.got or "")
