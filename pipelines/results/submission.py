"""What became of a pipeline that was handed to Dataflow, and how that is said."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal

State = Literal["submitted", "done", "template", "dry run"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """What became of a pipeline that was handed to Dataflow.

    Attributes:
        pipeline: Its name.
        state: `submitted`: a job has been created, and nothing is known of its end;
            `done`: the job was waited for and has succeeded; `template`: a description
            of the job was written, and no job has been created; `dry run`: neither.
        target: The dataset.
        project: The project.
        region: Where the workers are.
        job_id: The job, where there is one.
        template: Where the description was written, if it was.
        notes: What a person should know.
    """

    pipeline: str
    state: State
    target: str
    project: str
    region: str
    job_id: str | None = None
    template: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def url(self) -> str | None:
        """Where to watch the job."""
        if self.job_id is None:
            return None
        return (
            f"https://console.cloud.google.com/dataflow/jobs/{self.region}/"
            f"{self.job_id}?project={self.project}"
        )

    def text(self) -> str:
        """Returns it for the eye."""
        said = {
            "submitted": f"submitted: job {self.job_id} has NOT finished yet",
            "done": f"done: job {self.job_id} has succeeded",
            "template": f"written: {self.template} describes the job; nothing has run",
            "dry run": "checked: nothing was submitted",
        }
        lines = [f"{self.pipeline} {said[self.state]}"]
        if self.url is not None:
            lines.append(f"  watch     {self.url}")
        if self.state in ("submitted", "template") and self.pipeline == "convert":
            lines.append(f"  progress  gristmill status {self.target}")
        if self.state == "done":
            lines.append(f"  dataset   gristmill inspect {self.target}")
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    def json(self) -> str:
        """Returns it as one JSON object."""
        fields = dataclasses.asdict(self) | {"url": self.url}
        return json.dumps(fields, ensure_ascii=False)
