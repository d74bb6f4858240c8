"""`AttachColumns`: a function computes columns of a dataset, one element a shard."""

from __future__ import annotations

import dataclasses

from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.run_job import JobTransform
from gristmill.transforms.columns.attach_job import AttachResult
from gristmill.transforms.columns.computed_values import ComputeJob


@dataclasses.dataclass(kw_only=True)
class AttachColumns(JobTransform[AttachResult]):
    """Attaches columns that a function computes from the records of a dataset.

    Applied to a pipeline; gives a PCollection of one `AttachResult`. The records stay
    as they are. The files are those of `gristmill attach --map`, byte for byte.

    Guarantees: bounded; one linear chain, so that every runner executes it; as many
    shards are written at once as the runner has threads; retries do no harm. Memory per
    shard in flight: its values, and 1 MiB of the file (up to 4 MiB decoded), or one
    chunk if that is larger.

    Attributes:
        dataset: The directory of a committed dataset.
        function: `module:function`, which workers can import. It is called with a
            record, and returns a dict of its values by column: numbers, texts, or
            arrays of numbers.
        split: The split; None for the only one.
        overwrite: Whether columns of these names are replaced.
    """

    dataset: StrPath
    function: str
    split: str | None = None
    overwrite: bool = False

    _gives = AttachResult

    def _make_job(self) -> ComputeJob:
        dataset = path_text(self.dataset, "dataset")
        return ComputeJob(dataset, self.function, self.split, self.overwrite)
