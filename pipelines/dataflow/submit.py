"""Submission of a pipeline to Dataflow, after quick checks."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    TestOptions,
)
from apache_beam.runners.runner import PipelineState
from apache_beam.utils.retry import PermanentException

from gristmill.dataset.base.errors import GristmillError, JobError
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import has_magic
from gristmill.pipelines.beam.job_graphs import graph_of
from gristmill.pipelines.beam.pipeline_options import ignored_options
from gristmill.pipelines.dataflow.clients import cure_of, denied_permission
from gristmill.pipelines.dataflow.defaults import set_defaults, target_of
from gristmill.pipelines.dataflow.preflight import preflight
from gristmill.pipelines.dataflow.worker_code import sent_code
from gristmill.pipelines.options.job_options import (
    IndexOptions,
    LaunchOptions,
    Options,
)

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

    also_shown = ("url",)

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
            lines.append(f"  progress  gristmill inspect {target}")
        if self.state == "done":
            lines.append(f"  dataset   gristmill inspect {target}")
        lines += [f"  checked   {what}" for what in self.checked]
        lines += [f"  not yet   {what}" for what in self.not_checked]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def submit(
    options: Options, launch: LaunchOptions, beam_arguments: Sequence[str]
) -> Submission:
    """Submits a pipeline to Dataflow, after quick checks.

    Args:
        options: Options of the pipeline.
        launch: How to run it.
        beam_arguments: Options of Beam, including `--runner`.

    Raises:
        InputError: A check failed.
        JobError: The job could not be created, or failed with `--wait`.
    """
    beam_options = PipelineOptions(list(beam_arguments))
    pipeline = options.command
    set_defaults(beam_options, pipeline, options)
    checks = preflight(options, launch, beam_options)
    checks.notes += [
        f"Beam ignores {ignored.argument}"
        for ignored in ignored_options(beam_arguments)
    ]
    result = None
    if not checks.is_offline:
        with sent_code(options, beam_options):
            result = _run(options, beam_options)
        checks.done.append("graph of the job")
    cloud = beam_options.view_as(GoogleCloudOptions)
    submission = Submission(
        pipeline=pipeline,
        state="submitted",
        target=target_of(options) if checks.is_offline else _dataset(options),
        project=cloud.project,
        region=cloud.region,
        notes=tuple(checks.notes),
    )
    if result is None or beam_options.view_as(TestOptions).dry_run:
        return dataclasses.replace(
            submission,
            state="dry run",
            checked=tuple(checks.done),
            not_checked=tuple(checks.left_out),
        )
    if not result.has_job:
        return dataclasses.replace(
            submission, state="template", template=cloud.template_location
        )
    submission = dataclasses.replace(submission, job_id=result.job_id())
    return _wait(submission, result) if launch.wait else submission


def _dataset(options: Options) -> str:
    """Returns the directory of the dataset, which is asked for what to index is."""
    target = target_of(options)
    if isinstance(options, IndexOptions):
        path = options.files[0]
        if not has_magic(path) and storage_for(path).stat(path) is None:
            return path.rstrip("/")
    return target


def _run(options: Options, beam_options: PipelineOptions) -> Any:
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    label = type(options).__name__.removesuffix("Options")
    try:
        pipeline = beam.Pipeline(options=beam_options)
        _ = pipeline | label >> graph_of(options)
        return pipeline.run()
    except GristmillError:
        raise
    except (
        GoogleAPIError,
        GoogleAuthError,
        OSError,
        PermanentException,
        RuntimeError,
        ValueError,
    ) as e:
        permission = denied_permission(str(e))
        raise JobError(
            "the job could not be submitted to Dataflow",
            expected=permission and f"the permission {permission}",
            got=str(e),
            cure="see deploy/README.md for the messages of Dataflow and what to do"
            if permission is None
            else cure_of(permission),
        ) from e


def _wait(submission: Submission, result: Any) -> Submission:
    """Waits until a job has finished."""
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException

    with _failures_of_threads() as failures:
        try:
            state = result.wait_until_finish()
        except DataflowRuntimeException as e:
            got = str(e)
        except AssertionError as e:
            # Beam asks for the state in a thread, and does not say why that has ended.
            raise _unknown_end(submission, str(failures[-1] if failures else e)) from e
        else:
            got = str(state)
    if got != PipelineState.DONE:
        raise JobError(
            "the Dataflow job has not succeeded",
            where=submission.url,
            got=got,
            cure="read its log there, then run the same command again; finished shards "
            "are kept",
        )
    if submission.pipeline != "verify":
        open_manifest(submission.target)
    return dataclasses.replace(submission, state="done")


@contextlib.contextmanager
def _failures_of_threads() -> Iterator[list[BaseException]]:
    """Collects what ends threads meanwhile, which Python would print."""
    failures: list[BaseException] = []
    inherited = threading.excepthook

    def notice(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is not None:
            failures.append(failure.exc_value)

    threading.excepthook = notice
    try:
        yield failures
    finally:
        threading.excepthook = inherited


def _unknown_end(submission: Submission, got: str) -> JobError:
    permission = denied_permission(got)
    cure = "run `gcloud dataflow jobs list`, or look at its page"
    if permission is not None:
        cure = f"{cure_of(permission)}, or leave out --wait"
    return JobError(
        "the job was submitted, but its state cannot be read",
        where=submission.url,
        expected=permission and f"the permission {permission}",
        got=got,
        cure=f"{cure}; the job continues",
    )
