"""`FindDuplicates`: the column `duplicate_of` of a dataset, one element a shard."""

from __future__ import annotations

import dataclasses

from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.run_job import JobTransform
from gristmill.transforms.columns.duplicates import (
    Comparison,
    DuplicatesJob,
    DuplicatesResult,
)


@dataclasses.dataclass(kw_only=True)
class FindDuplicates(JobTransform[DuplicatesResult]):
    """Finds exact duplicates among the records of a dataset.

    Applied to a pipeline; gives a PCollection of one `DuplicatesResult`. The column
    `duplicate_of` has the number of the first of equal records, -1 for that itself. The
    files are those of `gristmill unique`, byte for byte.

    Guarantees: bounded; one linear chain, so that every runner executes it; retries do
    no harm. Memory: 100 bytes a record of a shard in flight; 250 MB where the digests
    are compared, which one worker does, on a disk with room for 24 bytes a duplicate.

    Attributes:
        dataset: The directory of a committed dataset.
        by: What is the same: `text`, `record` (the stored bytes) or `normalised` (the
            text by NFKC, in lower case, with white space collapsed). `text:NAME` names
            the feature, where it is not `text`.
        split: The split; None for the only one.
        overwrite: Whether a column `duplicate_of` is replaced.
    """

    dataset: StrPath
    by: str = "text"
    split: str | None = None
    overwrite: bool = False

    _gives = DuplicatesResult

    def _make_job(self) -> DuplicatesJob:
        Comparison.parse(self.by)
        dataset = path_text(self.dataset, "dataset")
        return DuplicatesJob(dataset, self.by, self.split, self.overwrite)
