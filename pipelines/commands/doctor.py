"""`gristmill doctor`: looks for what will fail or be slow, before it does."""

from __future__ import annotations

import collections
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gristmill.pipelines.commands.exit_codes import EXIT_FAILED
from gristmill.pipelines.commands.messages import next_step
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.option import argument

if TYPE_CHECKING:
    from gristmill.pipelines.doctor.finding import Finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of `gristmill doctor`."""

    dataset: str | None = argument(required=False)


@command("doctor", DoctorOptions)
def doctor(options: DoctorOptions, *, as_json: bool) -> None:
    """Check this machine, and where DATASET is stored.

    Without DATASET, it checks only the machine: versions, native builds, shared memory,
    disks and credentials. For a dataset, it also checks unfinished jobs, group size,
    mount and bucket. Each finding says why it matters and what to do. Nothing is
    changed. The exit code is 1 if there is an error.
    """
    from gristmill.pipelines.doctor.checks import examine
    from gristmill.pipelines.doctor.installation import installed_versions

    findings = examine(options.dataset)
    counts = collections.Counter(finding.level for finding in findings)
    if as_json:
        document = {
            "errors": counts["error"],
            "warnings": counts["warning"],
            "installed": installed_versions(),
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        click.echo(findings_text(findings))
    if counts["error"]:
        sys.exit(EXIT_FAILED)  # The findings say what to do.
    if options.dataset is None:
        next_step("demo", why="to try it here")
    else:
        next_step("inspect", options.dataset)


def findings_text(findings: Sequence[Finding]) -> str:
    """Returns findings as text: a line each, and two more where something is wrong."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:7}  {finding.check:{width}}  {finding.seen}")
        for label, text in (("why", finding.why), ("to do", finding.cure)):
            if text:
                lines.append(f"{'':7}  {'':{width}}    {label + ':':7}{text}")
    counts = collections.Counter(finding.level for finding in findings)
    lines.append(
        ", ".join(
            f"{counts[level]} {level}{'' if counts[level] == 1 else 's'}"
            for level in ("error", "warning")
        )
    )
    return "\n".join(lines)
