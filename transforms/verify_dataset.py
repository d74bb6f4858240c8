"""`VerifyDataset`: every byte of a dataset compared, one element a shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apache_beam as beam

from gristmill.dataset.findings import Finding
from gristmill.transforms.checking.metadata import (
    VerifyTask,
    plan_verify,
)
from gristmill.transforms.checking.shard import ShardCheck, verify_shard


class VerifyResult(NamedTuple):
    """What was verified in a dataset, and what is wrong.

    Attributes:
        dataset: Its directory.
        shards: Shards that were checked.
        records: Records that were decoded and compared.
        raw_bytes: Their size.
        findings: What is wrong, sorted by file; empty if the dataset is whole.
    """

    dataset: str
    shards: int
    records: int
    raw_bytes: int
    findings: tuple[Finding, ...]


def _plan(dataset: str, quick: bool) -> Iterator[ShardCheck | VerifyTask]:
    findings, tasks = plan_verify(dataset)
    # Metadata travels as the check of a shard without a path.
    yield ShardCheck("", 0, 0, tuple(findings))
    for task in tasks:
        yield ShardCheck(task.path, 0, 0, ()) if quick else task


def _check(task: ShardCheck | VerifyTask) -> ShardCheck:
    if isinstance(task, ShardCheck):
        return task
    check = verify_shard(task)
    for name, value in (
        ("verified-shards", 1),
        ("verified-records", check.records),
        ("findings", len(check.findings)),
    ):
        beam.metrics.Metrics.counter("gristmill", name).inc(value)
    return check


class _SumUpFn(beam.CombineFn):
    """Adds up checks. Their order is not fixed: findings are sorted at the end."""

    def __init__(self, dataset: str):
        self._dataset = dataset

    def create_accumulator(self) -> VerifyResult:
        return VerifyResult(self._dataset, 0, 0, 0, ())

    def add_input(self, total: VerifyResult, check: ShardCheck) -> VerifyResult:
        return VerifyResult(
            self._dataset,
            total.shards + bool(check.path),
            total.records + check.records,
            total.raw_bytes + check.raw_bytes,
            total.findings + check.findings,
        )

    def merge_accumulators(self, totals: Iterable[VerifyResult]) -> VerifyResult:
        totals = list(totals)
        return VerifyResult(
            self._dataset,
            sum(total.shards for total in totals),
            sum(total.records for total in totals),
            sum(total.raw_bytes for total in totals),
            tuple(finding for total in totals for finding in total.findings),
        )

    def extract_output(self, total: VerifyResult) -> VerifyResult:
        unique = {(f.path, f.what): f for f in total.findings}
        return total._replace(findings=tuple(unique[key] for key in sorted(unique)))


@dataclasses.dataclass
class VerifyDataset(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[VerifyResult]]
):
    """Reads a whole dataset again, and lists what is wrong with it.

    Applied to a pipeline; gives a PCollection of one `VerifyResult`. Damage does not
    fail the pipeline: look at `findings`. Only a directory that is no committed
    dataset does.

    Guarantees: bounded; one linear chain, so that every runner executes it; as many
    shards are read at once as the runner has threads; nothing is written, so retries do
    no harm. Memory per shard in flight: a window of 4 MiB of the file (up to 16 MiB
    decoded), and some 20 bytes a record of the shard.

    Attributes:
        dataset: The directory of a committed dataset.
        quick: Whether to check only metadata, presence and sizes.
    """

    dataset: str
    quick: bool = False

    def __post_init__(self) -> None:
        """Lets Beam initialise its part."""
        super().__init__()

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[VerifyResult]:
        """Builds the chain."""
        verified: beam.PCollection[VerifyResult] = (
            begin
            | "Dataset" >> beam.Create([self.dataset])
            | "ListShards" >> beam.FlatMap(_plan, self.quick)
            | "SpreadShards" >> beam.Reshuffle()
            | "VerifyShards" >> beam.Map(_check)
            | "SumUp" >> beam.CombineGlobally(_SumUpFn(self.dataset))
        )
        return verified
