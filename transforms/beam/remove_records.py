"""`RemoveRecords`: records leave a dataset, one element a shard that holds some."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.run_job import JobTransform
from gristmill.transforms.removal.removal_job import RemovalJob, RemovalResult


@dataclasses.dataclass(kw_only=True)
class RemoveRecords(JobTransform[RemovalResult]):
    """Removes records from a dataset. Only shards that hold some are written again.

    It removes documents of packed rows: their tokens become padding in their places.

    Applied to a pipeline; gives a PCollection of one `RemovalResult`. The dataset is
    the old one until all is done, and the new one then. The same records of the same
    edition are removed once, however often it runs.

    Guarantees: bounded; one linear chain, so that every runner executes it; as many
    shards are written at once as the runner has threads; shards that an earlier run has
    finished are kept, and retries do no harm. Memory per shard in flight: 1 MiB of the
    file (up to 4 MiB decoded), or one chunk if that is larger, and some 30 bytes a
    record of the shard.

    Attributes:
        dataset: The directory of a committed dataset.
        records: Numbers of records of the split.
        split: The split; None for the only one.
        edition: The newest edition, whose records are numbered so; None for any.
        erase: Whether to delete the state before, with the bytes of the records. That
            fails while other work on the split is unfinished.
    """

    dataset: StrPath
    records: npt.ArrayLike
    split: str | None = None
    edition: int | None = None
    erase: bool = False

    _gives = RemovalResult

    def _make_job(self) -> RemovalJob:
        records = np.asarray(self.records, np.int64)
        asked = {"records": records, "split": self.split, "edition": self.edition}
        dataset = path_text(self.dataset, "dataset")
        return RemovalJob(dataset, {**asked, "erase": self.erase})
