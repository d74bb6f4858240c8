"""`VerifyDataset`: compares every byte of a dataset, one element per shard."""

from __future__ import annotations

import dataclasses

import apache_beam as beam

from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.result_coders import ResultCoder
from gristmill.transforms.beam.run_job import JobTransform
from gristmill.transforms.checking.verification import VerifyJob, VerifyResult

beam.coders.registry.register_coder(VerifyResult, ResultCoder)


@dataclasses.dataclass
class VerifyDataset(JobTransform[VerifyResult]):
    """Reads a whole dataset again, and lists its faults.

    Apply it to a pipeline; it returns a PCollection of one `VerifyResult`. Damage does
    not fail the pipeline, see `findings`; a directory without a committed dataset does.

    Guarantees: bounded; one linear chain, which every runner can execute; each thread
    of the runner reads a shard at a time; nothing is written, so retries do no harm.
    Memory per shard in flight: 1 MiB of the file (up to 4 MiB decoded), or one chunk if
    that is larger, and some 20 bytes per record; for packed rows some 80 bytes per
    piece.

    Attributes:
        dataset: The directory of a committed dataset.
        quick: Whether to skip the contents of shards and indexes.
    """

    dataset: StrPath
    quick: bool = False

    _gives = VerifyResult

    def _make_job(self) -> VerifyJob:
        return VerifyJob(path_text(self.dataset, "dataset"), self.quick)
