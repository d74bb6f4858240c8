"""Submission of a pipeline to Dataflow, after quick checks."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from gristmill.dataset.base.errors import CorruptShardError, GristmillError, JobError
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import has_magic
from gristmill.pipelines.beam.pipeline_options import ignored_options
from gristmill.pipelines.dataflow.clients import refusal_of
from gristmill.pipelines.dataflow.defaults import set_defaults, target_of
from gristmill.pipelines.dataflow.preflight import AskedJob, preflight
from gristmill.pipelines.dataflow.worker_code import sent_code
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    IndexOptions,
    LaunchOptions,
    Options,
    VerifyOptions,
)
from gristmill.pipelines.text.printer import plural
from gristmill.pipelines.text.verification import Verification
from gristmill.transforms.beam.job_transforms import (
    ConvertFiles,
    IndexArrayRecords,
    VerifyDataset,
)
from gristmill.transforms.checking.verification import VerifyResult

State = Literal["submitted", "done", "template", "dry run"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """The state of a pipeline that was submitted to Dataflow.

    Attributes:
        pipeline: Name of the pipeline.
        state: `submitted`: the job was created, and may still run; `done`: the job has
            succeeded; `template`: a description of the job was written, and no job was
            created; `dry run`: neither.
        target: Directory of the dataset.
        project: The Google Cloud project.
        region: Region of the workers.
        job_id: ID of the job, if one was created.
        template: Path of the job's description, if one was written.
        notes: Remarks for the user.
        checked: Names of the checks of a dry run.
        not_checked: Names of what it did not check.
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

    @property
    def title(self) -> str:
        """The state, for people."""
        states = {
            "submitted": f"submitted: job {self.job_id} has NOT finished yet",
            "done": f"done: job {self.job_id} has succeeded",
            "template": f"written: {self.template} describes the job; nothing has run",
            "dry run": "checked: nothing was submitted",
        }
        return f"{self.pipeline} {states[self.state]}"

    @property
    def facts(self) -> dict[str, Any]:
        """Further facts for people."""
        inspect = f"gristmill inspect {shlex.quote(self.target)}"
        begun = self.pipeline == "convert" and self.state in ("submitted", "template")
        return {
            "watch": self.url,
            "progress": inspect if begun else None,
            "dataset": inspect if self.state == "done" else None,
            "checked": self.checked,
            "not yet": self.not_checked,
            "note": self.notes,
        }


def _report(result: VerifyResult, options: VerifyOptions) -> Verification:
    """Writes the result to a file, and fails if there are findings.

    A service shows only the job's state. Retries write the same report again.
    """
    found = Verification(quick=options.quick, **vars(result))
    if options.report is not None:
        found.write(options.report)
    if found.findings:
        raise CorruptShardError(
            f"the dataset is damaged: {plural(found.findings_count, 'finding')}",
            where=found.dataset,
            got=str(found.findings[0]),
            cure=f"see {options.report or 'gristmill verify'} for all findings",
        )
    return found


def graph_of(options: Options) -> beam.PTransform[beam.pvalue.PBegin, Any]:
    """Returns a pipeline whose workers list the inputs and plan the shards.

    Building the graph reads only what `conversion_of` reads.
    """
    if isinstance(options, ConvertOptions):
        return ConvertFiles(**conversion_of(options)._asdict())
    if isinstance(options, VerifyOptions):
        verify: Any = VerifyDataset(options.dataset, quick=options.quick)
        chain: beam.PTransform[beam.pvalue.PBegin, Any] = verify | "Report" >> beam.Map(
            _report, options
        )
        return chain
    return IndexArrayRecords(**dataclasses.asdict(options))


def submit(
    options: Options, launch: LaunchOptions, beam_arguments: Sequence[str]
) -> Submission:
    """Submits a pipeline to Dataflow, after quick checks.

    Args:
        options: Options of the pipeline.
        launch: Options of the launch.
        beam_arguments: Options of Beam, including `--runner`.

    Raises:
        InputError: A check failed.
        JobError: The job could not be created, or failed with `--wait`.
    """
    beam_options = PipelineOptions(list(beam_arguments))
    set_defaults(beam_options, options)
    asked = AskedJob(options, launch, beam_options)
    result: Any = None
    target = target_of(options)
    if preflight(asked):
        with sent_code(options, beam_options):
            result = _run(options, beam_options)
        asked.checked.append("graph of the job")
        if isinstance(options, IndexOptions):
            # The files to index may be given as a directory: look.
            path = options.files[0]
            if not has_magic(path) and storage_for(path).stat(path) is None:
                target = path.rstrip("/")
    given, ignored = asked.beam, ignored_options(beam_arguments)
    is_dry = result is None or given.dry_run
    created = not is_dry and result.has_job
    submission = Submission(
        pipeline=options.command,
        state="dry run" if is_dry else "submitted" if created else "template",
        target=target,
        project=given.project,
        region=given.region,
        job_id=result.job_id() if created else None,
        template=None if is_dry or created else given.template_location,
        notes=(*asked.notes, *(f"Beam ignores {argument}" for argument, _ in ignored)),
        checked=tuple(asked.checked if is_dry else ()),
        not_checked=tuple(asked.not_checked if is_dry else ()),
    )
    return _wait(submission, result) if launch.wait and created else submission


def _run(options: Options, beam_options: PipelineOptions) -> Any:
    label = type(options).__name__.removesuffix("Options")
    try:
        pipeline = beam.Pipeline(options=beam_options)
        _ = pipeline | label >> graph_of(options)
        return pipeline.run()
    except GristmillError:
        raise
    except Exception as e:  # Beam and Google's clients raise anything.
        cure = "see deploy/README.md for the messages of Dataflow and what to do"
        raise JobError(
            "the job could not be submitted to Dataflow",
            **refusal_of(str(e), cure=cure),
        ) from e


def _wait(submission: Submission, result: Any) -> Submission:
    """Waits until a job has finished."""
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException

    with _failures_of_threads() as failures:
        try:
            got = str(result.wait_until_finish())
        except DataflowRuntimeException as e:
            got = str(e)
        except AssertionError as e:
            # Beam asks for the state in a thread, and hides the error that ended it.
            said = str(failures[-1] if failures else e)
            cure = "run `gcloud dataflow jobs list`, or look at its page"
            raise JobError(
                "the job was submitted and continues, but its state cannot be read",
                where=submission.url,
                **refusal_of(said, cure=cure),
            ) from e
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
    """Collects errors that end threads meanwhile, which Python would print."""
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
