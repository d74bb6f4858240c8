"""`VerifyDataset`: every byte of a dataset compared, one element a shard."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam

from gristmill.dataset.findings import Finding
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.checking.metadata import (
    VerifyTask,
    plan_verify,
)
from gristmill.transforms.checking.shard import verify_shard
from gristmill.transforms.graph.applied import check_begin, set_types
from gristmill.transforms.graph.display import displayed
from gristmill.transforms.graph.lineage import report_sources


class VerifyResult(NamedTuple):
    """What was verified in a dataset, and what is wrong.

    Attributes:
        dataset: Its directory.
        shards: Shards that were checked.
        records: Records that were decoded and compared; None if none was to be.
        raw_bytes: Their size; None likewise.
        findings: What is wrong with what was checked, sorted by file.
        leftovers: Files of commands that were killed, or that still run.
    """

    dataset: str
    shards: int
    records: int | None
    raw_bytes: int | None
    findings: tuple[Finding, ...]
    leftovers: tuple[str, ...] = ()


def _plan(dataset: str, quick: bool) -> Iterator[VerifyResult | VerifyTask]:
    report_sources((dataset,))
    plan = plan_verify(dataset)
    found = tuple(plan.findings), plan.leftovers
    if quick:
        yield VerifyResult(dataset, len(plan.tasks), None, None, *found)
    else:
        yield VerifyResult(dataset, 0, 0, 0, *found)
        yield from plan.tasks


def _verify(task: VerifyResult | VerifyTask) -> VerifyResult:
    if isinstance(task, VerifyResult):
        return task
    _, records, raw_bytes, findings = verify_shard(task)
    for name, value in (
        ("verified-shards", 1),
        ("verified-records", records),
        ("findings", len(findings)),
    ):
        beam.metrics.Metrics.counter("gristmill", name).inc(value)
    return VerifyResult(task.dataset, 1, records, raw_bytes, findings)


def _sum_up(results: Iterable[VerifyResult], dataset: str) -> VerifyResult:
    """Adds up results. Beam calls it on sums again, so findings are only joined."""
    results = list(results)
    return VerifyResult(
        dataset,
        sum(result.shards for result in results),
        _total(result.records for result in results),
        _total(result.raw_bytes for result in results),
        tuple(itertools.chain.from_iterable(result.findings for result in results)),
        tuple(itertools.chain.from_iterable(result.leftovers for result in results)),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    counts = list(counts)
    return None if None in counts else sum(count or 0 for count in counts)


def _sort_findings(result: VerifyResult) -> VerifyResult:
    """Sorts findings, as the order of results is not fixed."""
    unique = {(finding.path, finding.what): finding for finding in result.findings}
    return result._replace(findings=tuple(unique[key] for key in sorted(unique)))


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
    no harm. Memory per shard in flight: 1 MiB of the file (up to 4 MiB decoded), or
    one chunk if that is larger, and some 20 bytes a record of the shard.

    Attributes:
        dataset: The directory of a committed dataset.
        quick: Whether to leave out the contents of shards and indexes.
    """

    dataset: StrPath
    quick: bool = False

    def __post_init__(self) -> None:
        """Checks the path.

        Raises:
            InputError: It is none.
        """
        super().__init__()
        set_types(self, gives=VerifyResult)
        self._dataset = path_text(self.dataset, "dataset")

    def display_data(self) -> dict[str, Any]:
        """Returns what a runner's page shows."""
        return displayed(input=self._dataset, quick=self.quick)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[VerifyResult]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "VerifyDataset")
        verified: beam.PCollection[VerifyResult] = (
            begin
            | "Dataset" >> beam.Create([self._dataset])
            | "ListShards" >> beam.FlatMap(_plan, self.quick)
            | "SpreadShards" >> beam.Reshuffle()
            | "VerifyShards" >> beam.Map(_verify)
            | "SumUp" >> beam.CombineGlobally(_sum_up, self._dataset).without_defaults()
            | "SortFindings" >> beam.Map(_sort_findings)
        )
        return verified
