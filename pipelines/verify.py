"""Verifying a dataset on the processes of this machine."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

from gristmill.pipelines.local_pool import default_workers, map_unordered
from gristmill.pipelines.summary import plural, size_text
from gristmill.transforms.shard_check import (
    Finding,
    verify_metadata,
    verify_shard,
    verify_tasks,
)

_SHOWN = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """What was looked at, and what is wrong.

    Attributes:
        dataset: The dataset.
        quick: Whether only metadata, presence and sizes were looked at.
        shards: Shards looked at.
        records: Records decoded and compared; 0 when quick.
        raw_bytes: Their size.
        findings: What is wrong; empty if all is well.
        seconds: How long it took.
    """

    dataset: str
    quick: bool
    shards: int
    records: int
    raw_bytes: int
    findings: Sequence[Finding]
    seconds: float


def verify(
    dataset: str, *, quick: bool = False, workers: int | None = None
) -> Verification:
    """Verifies a committed dataset.

    Args:
        dataset: Its directory.
        quick: Whether to look at metadata, presence and sizes only.
        workers: Processes of this machine; by default as many as it has cores.

    Raises:
        NotADatasetError: The dataset is not committed.
        InvalidDatasetError: Its metadata cannot be read.
    """
    started = time.monotonic()
    findings = list(verify_metadata(dataset))
    tasks = list(verify_tasks(dataset))
    records = raw_bytes = 0
    if not quick:
        count = max(1, min(workers or default_workers(), len(tasks)))
        for check in map_unordered(verify_shard, tasks, workers=count):
            findings += check.findings
            records += check.records
            raw_bytes += check.raw_bytes
    return Verification(
        dataset=dataset,
        quick=quick,
        shards=len(tasks),
        records=records,
        raw_bytes=raw_bytes,
        findings=tuple(dict.fromkeys(findings)),
        seconds=time.monotonic() - started,
    )


def verification_text(found: Verification) -> str:
    """Returns the result for the eye."""
    lines = [str(finding) for finding in found.findings[:_SHOWN]]
    if len(found.findings) > _SHOWN:
        lines.append(f"... and {len(found.findings) - _SHOWN:,} more")
    looked = (
        f"metadata and sizes of {plural(found.shards, 'shard')}"
        if found.quick
        else f"{plural(found.records, 'record')} ({size_text(found.raw_bytes)}) in "
        f"{plural(found.shards, 'shard')}, every byte"
    )
    verdict = (
        f"DAMAGED: {plural(len(found.findings), 'finding')}"
        if found.findings
        else "whole"
    )
    lines.append(f"{found.dataset}: {verdict}; {looked} in {found.seconds:,.1f} s")
    return "\n".join(lines)


def verification_json(found: Verification) -> str:
    """Returns the result as one JSON object."""
    return json.dumps(dataclasses.asdict(found), ensure_ascii=False)
