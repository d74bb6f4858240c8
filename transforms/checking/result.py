"""The result of a verification, gathered shard by shard in any order."""

from __future__ import annotations

from typing import NamedTuple

from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.findings import Finding, Findings
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.transforms.checking.metadata import VerifyPlan


class VerifyResult(NamedTuple):
    """The result of a verification.

    Attributes:
        dataset: Its directory.
        shards: Shards that were checked.
        records: Records that were decoded and compared; None if none was to be.
        raw_bytes: Their size; None likewise.
        findings: What is wrong with what was checked, sorted by file: the first 10,000,
            and of a shard the first 100.
        leftovers: Files of commands that were killed, or that still run: the first
            1,000.
        more_findings: How many others there are.
        more_leftovers: How many others there are.
        packed: What packed rows hold; None if there are none.
    """

    dataset: str
    shards: int
    records: int | None
    raw_bytes: int | None
    findings: tuple[Finding, ...]
    leftovers: tuple[str, ...] = ()
    more_findings: int = 0
    more_leftovers: int = 0
    packed: PackedCounts | None = None


class ShardCheck(NamedTuple):
    """The result of verifying one shard.

    Attributes:
        path: The shard, relative to the dataset.
        records: Records that were decoded and compared.
        raw_bytes: Their size.
        findings: What is wrong, the first of it.
        file_bytes: What the size of the shard should be.
        more_findings: How many others there are.
        packed: What packed rows hold, None of others, and where documents could not be
            joined.
    """

    path: str
    records: int
    raw_bytes: int
    findings: tuple[Finding, ...]
    file_bytes: int = 0
    more_findings: int = 0
    packed: PackedCounts | None = None

    def gather(self, gathered: Gathered) -> None:
        """Adds it to what is known."""
        gathered.rows.setdefault("checks", GatheredChecks()).add(self)

    @property
    def done(self) -> Done:
        """What was done."""
        found = len(self.findings) + self.more_findings
        counts = {
            **{"verified-shards": 1, "verified-records": self.records},
            **{"findings": found, "shard-bytes": self.file_bytes},
        }
        said = f"{self.records} records compared"
        numbers = self.file_bytes, self.records, self.raw_bytes
        return Done(self.path, said, *numbers, counts)


class GatheredChecks:
    """What is known of a dataset while it is checked.

    Its size does not depend on that of the dataset.

    Args:
        plan: What the metadata tells; None to begin with nothing.
        quick: Whether that is all, and no shard is read.
    """

    def __init__(self, plan: VerifyPlan | None = None, *, quick: bool = False):
        self._quick = quick
        self._shards = self._records = self._raw_bytes = 0
        self._findings = Findings()
        self._leftovers: tuple[str, ...] = ()
        self._more_leftovers = 0
        self._packed: PackedCounts | None = None
        if plan is not None:
            self._shards = len(plan.tasks) if quick else 0
            self._findings = plan.findings
            self._leftovers = plan.leftovers.first
            self._more_leftovers = plan.leftovers.more
            self._packed = plan.packed if quick else None

    def add(self, check: ShardCheck) -> None:
        """Takes the result of a shard."""
        self._shards += 1
        self._records += check.records
        self._raw_bytes += check.raw_bytes
        self._add_packed(check.packed)
        self._findings.add(check.findings, more=check.more_findings)

    def gather(self, gathered: Gathered) -> None:
        """Adds all of it to what is known."""
        gathered.rows.setdefault("checks", GatheredChecks()).extend(self)

    def emptied(self) -> GatheredChecks:
        """Returns one with nothing."""
        return GatheredChecks()

    def extend(self, other: GatheredChecks) -> None:
        """Takes all that another collection has."""
        self._quick |= other._quick
        self._shards += other._shards
        self._records += other._records
        self._raw_bytes += other._raw_bytes
        self._findings.merge(other._findings)
        self._leftovers += other._leftovers
        self._more_leftovers += other._more_leftovers
        self._add_packed(other._packed)

    def _add_packed(self, counts: PackedCounts | None) -> None:
        if counts is not None:
            self._packed = counts + (self._packed or PackedCounts())

    def result(self, dataset: str) -> VerifyResult:
        """Returns all of it."""
        return VerifyResult(
            dataset,
            self._shards,
            None if self._quick else self._records,
            None if self._quick else self._raw_bytes,
            self._findings.first,
            self._leftovers,
            self._findings.more,
            self._more_leftovers,
            self._packed,
        )
