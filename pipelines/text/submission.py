"""The state of a pipeline that was submitted to Dataflow."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Literal

State = Literal["submitted", "done", "template", "dry run"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """The state of a pipeline that was submitted to Dataflow.

    Attributes:
        pipeline: Name of the pipeline.
        state: `submitted`: the job was created, and its end is not known; `done`: the
            job has succeeded; `template`: a description of the job was written, and no
            job was created; `dry run`: neither.
        target: Directory of the dataset.
        project: The Google Cloud project.
        region: Region of the workers.
        job_id: ID of the job, if one was created.
        template: Path of the job's description, if one was written.
        notes: Remarks for the user.
        checked: What a dry run has looked at.
        not_checked: What it has not.
    """

    pipeline: str
    state: State
    target: str
    project: str
    region: str
    job_id: str | None = None
    template: str | None = None
    notes: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()

    @property
    def url(self) -> str | None:
        """Page of the job in the Google Cloud console."""
        if self.job_id is None:
            return None
        return (
            f"https://console.cloud.google.com/dataflow/jobs/{self.region}/"
            f"{self.job_id}?project={self.project}"
        )

    def text(self) -> str:
        """Returns the state as text."""
        states = {
            "submitted": f"submitted: job {self.job_id} has NOT finished yet",
            "done": f"done: job {self.job_id} has succeeded",
            "template": f"written: {self.template} describes the job; nothing has run",
            "dry run": "checked: nothing was submitted",
        }
        lines = [f"{self.pipeline} {states[self.state]}"]
        if self.url is not None:
            lines.append(f"  watch     {self.url}")
        target = shlex.quote(self.target)
        if self.state in ("submitted", "template") and self.pipeline == "convert":
            lines.append(f"  progress  gristmill status {target}")
        if self.state == "done":
            lines.append(f"  dataset   gristmill inspect {target}")
        lines += [f"  checked   {what}" for what in self.checked]
        lines += [f"  not yet   {what}" for what in self.not_checked]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    def json(self) -> str:
        """Returns the state as one JSON object."""
        fields = dataclasses.asdict(self) | {"url": self.url}
        return json.dumps(fields, ensure_ascii=False)
