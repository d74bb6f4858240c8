"""Findings: the faults that `verify` found in a dataset."""

from __future__ import annotations

import dataclasses
import operator

from gristmill.dataset.base.errors import (
    FormatVersionError,
    GristmillError,
    InvalidDatasetError,
    StorageError,
)
from gristmill.dataset.base.first_items import FirstOf

# How many are kept for a dataset: a few megabytes. The others are counted.
_FINDINGS_KEPT = 10_000

# Errors of reading metadata that become findings.
UNREADABLE = (InvalidDatasetError, FormatVersionError, StorageError)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a dataset.

    Attributes:
        path: The file, relative to the dataset.
        what: What is wrong, with the record where one is concerned.
        expected: What should be there, or "" if that is not known.
        got: What is there, or "" if that is not known.
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


class Findings(FirstOf[Finding]):
    """Any number of findings: all are counted, and the first by file are kept."""

    def __init__(self) -> None:
        super().__init__(_FINDINGS_KEPT, operator.attrgetter("path", "what"))

    @property
    def summary(self) -> str:
        """The first finding, and how many more there are. There has to be one."""
        more = len(self) - 1
        return f"{self.first[0]}" + (f", and {more:,} more" if more else "")


def wrong_size(path: str, expected: int, got: int, *, what: str = "shard") -> Finding:
    """Returns the finding for a shard, or another file, of the wrong size."""
    return Finding(
        path, f"{what} has the wrong size", f"{expected:,} bytes", f"{got:,}"
    )


def finding_of(path: str, error: GristmillError) -> Finding:
    """Returns an error about a file of a dataset as a finding."""
    return Finding(path, error.what, expected=error.expected or "", got=error.got or "")
