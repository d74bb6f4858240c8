"""Verifying a dataset: on the processes of this machine, or by a Beam runner."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence

from gristmill.dataset.findings import Finding
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.local.pool import default_workers, map_unordered
from gristmill.pipelines.results.text import plural, size_text
from gristmill.transforms.checking.metadata import plan_verify
from gristmill.transforms.checking.shard import verify_shard

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
        seconds: How long it took, where that is known.
    """

    dataset: str
    quick: bool
    shards: int
    records: int
    raw_bytes: int
    findings: Sequence[Finding]
    seconds: float = 0.0


def verify(
    dataset: str,
    *,
    quick: bool = False,
    report: str | None = None,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
) -> Verification:
    """Verifies a committed dataset.

    Args:
        dataset: Its directory.
        quick: Whether to look at metadata, presence and sizes only.
        report: A file that what was found is also written to, as JSON.
        workers: Processes of this machine; by default as many as it has cores.
        beam_options: Options of a Beam pipeline, `--runner` among them; None to run
            without Beam.

    Raises:
        NotADatasetError: The dataset is not committed.
        InvalidDatasetError: Its metadata cannot be read.
    """
    started = time.monotonic()
    if beam_options is not None:
        found = _verify_on_beam(dataset, quick, beam_options)
    else:
        found = _verify_here(dataset, quick, workers or default_workers())
    found = dataclasses.replace(found, seconds=time.monotonic() - started)
    if report is not None:
        write_report(found, report)
    return found


def _verify_here(dataset: str, quick: bool, workers: int) -> Verification:
    findings, tasks = plan_verify(dataset)
    records = raw_bytes = 0
    if not quick:
        count = max(1, min(workers, len(tasks)))
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
    )


def _verify_on_beam(
    dataset: str, quick: bool, beam_options: Sequence[str]
) -> Verification:
    from gristmill.pipelines.beam_run import run_pipeline
    from gristmill.pipelines.dataflow.graphs import VerifyAndReport

    with tempfile.TemporaryDirectory(prefix="gristmill-") as directory:
        report = f"{directory}/report.json"
        graph = VerifyAndReport(dataset=dataset, quick=quick, report=report)
        run_pipeline(graph, "Verify", beam_options)
        return read_report(report)


def write_report(found: Verification, path: str) -> None:
    """Writes what was found to a file, as JSON."""
    data = verification_json(found) + "\n"
    storage_for(path).write(path, data.encode("utf-8", "surrogateescape"))


def read_report(path: str) -> Verification:
    """Reads what `write_report` wrote."""
    fields = json.loads(storage_for(path).read(path).decode("utf-8", "surrogateescape"))
    fields["findings"] = tuple(Finding(**finding) for finding in fields["findings"])
    return Verification(**fields)


def verification_text(found: Verification) -> str:
    """Returns the result for the eye."""
    lines = [str(finding) for finding in found.findings[:_SHOWN]]
    if len(found.findings) > _SHOWN:
        lines.append(f"... and {len(found.findings) - _SHOWN:,} more")
    looked = (
        # A listing of a bucket has the checksums of what it stores.
        f"metadata, sizes{' and checksums' if '://' in found.dataset else ''} of "
        f"{plural(found.shards, 'shard')}"
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
