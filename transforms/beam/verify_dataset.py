"""`VerifyDataset`: every byte of a dataset compared, one element a shard."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.job_metrics import count, measure_shard, report_sources
from gristmill.transforms.beam.pipeline_input import (
    check_begin,
    check_known,
    displayed,
    gather,
    set_types,
)
from gristmill.transforms.checking.metadata import VerifyTask, plan_verify
from gristmill.transforms.checking.result import GatheredChecks, VerifyResult
from gristmill.transforms.checking.shard import ShardCheck, verify_shard

_log = logging.getLogger(__name__)


def _plan(dataset: str, quick: bool) -> Iterator[GatheredChecks | VerifyTask]:
    report_sources((dataset,))
    plan = plan_verify(dataset, shards_too=quick)
    yield GatheredChecks(plan, quick=quick)
    if not quick:
        count({"planned-shards": len(plan.tasks)})
        _log.info("%s: %d shards to verify", dataset, len(plan.tasks))
        yield from plan.tasks


def _verify(task: GatheredChecks | VerifyTask) -> GatheredChecks | ShardCheck:
    if isinstance(task, GatheredChecks):
        return task
    begun = time.monotonic()
    check = verify_shard(task)
    measure_shard(time.monotonic() - begun, check.file_bytes)
    count(
        {
            "verified-shards": 1,
            "verified-records": check.records,
            "findings": len(check.findings) + check.more_findings,
        }
    )
    return check


def _result(gathered: GatheredChecks, dataset: str) -> VerifyResult:
    result = gathered.result(dataset)
    findings = len(result.findings) + result.more_findings
    _log.log(
        logging.WARNING if findings else logging.INFO,
        "%s: verified %d shards, %s records, %d findings%s",
        *(dataset, result.shards, result.records, findings),
        f", the first {result.findings[0]}" if findings else "",
    )
    return result


@dataclasses.dataclass
class VerifyDataset(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[VerifyResult]]
):
    """Reads a whole dataset again, and lists what is wrong with it.

    Applied to a pipeline; gives a PCollection of one `VerifyResult`. Damage does not
    fail the pipeline: look at `findings`. Only a directory that is not a committed
    dataset does.

    Guarantees: bounded; one linear chain, so that every runner executes it; as many
    shards are read at once as the runner has threads; nothing is written, so retries do
    no harm. Memory per shard in flight: 1 MiB of the file (up to 4 MiB decoded), or
    one chunk if that is larger, and some 20 bytes a record of the shard; of packed rows
    some 80 bytes a piece.

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
        check_known(self)

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
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
            | "SumUp" >> gather(GatheredChecks)
            | "Result" >> beam.Map(_result, self._dataset)
        )
        return verified
