"""The job of a verification: every shard of a dataset is read and compared."""

from __future__ import annotations

import dataclasses
import logging

from gristmill.dataset.base.columns import Gathered
from gristmill.transforms.checking.metadata import VerifyTask, plan_verify
from gristmill.transforms.checking.result import GatheredChecks, VerifyResult
from gristmill.transforms.checking.shard import verify_shard
from gristmill.transforms.jobs.job import Begun

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class VerifyJob:
    """The job.

    Attributes:
        dataset: The directory of a committed dataset.
        quick: Whether to leave out the contents of shards and indexes.
    """

    dataset: str
    quick: bool = False

    step = staticmethod(verify_shard)

    def begin(self) -> Begun[VerifyTask]:
        """Checks the metadata."""
        plan = plan_verify(self.dataset, shards_too=self.quick)
        shards = 0 if self.quick else len(plan.tasks)
        _log.info("%s: %d shards to verify", self.dataset, shards)
        return Begun(
            label="verifying",
            tasks=plan.tasks if shards else (),
            parts=shards,
            stored_bytes=plan.tasks.file_bytes,
            known=(GatheredChecks(plan, quick=self.quick),),
            sources=(self.dataset,),
        )

    def commit(self, gathered: Gathered) -> VerifyResult:
        """Returns the findings, and logs how many there are."""
        checks: GatheredChecks = gathered.rows["checks"]
        result = checks.result(self.dataset)
        findings = len(result.findings) + result.more_findings
        _log.log(
            logging.WARNING if findings else logging.INFO,
            "%s: verified %d shards, %s records, %d findings%s",
            *(self.dataset, result.shards, result.records, findings),
            f", the first {result.findings[0]}" if findings else "",
        )
        return result
