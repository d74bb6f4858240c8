"""Submission of a pipeline to Dataflow, after quick checks."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pathlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    TestOptions,
    WorkerOptions,
)
from apache_beam.runners.runner import PipelineState
from apache_beam.utils.retry import PermanentException

from gristmill import __version__
from gristmill.dataset.errors import GristmillError, InputError, JobError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.object_names import has_magic, split_path
from gristmill.pipelines.beam_graphs import graph_of
from gristmill.pipelines.dataflow import preflight
from gristmill.pipelines.dataflow.worker_disk import (
    DISK_GB,
    HARNESS_THREADS,
    MACHINE_TYPE,
    check_disk,
)
from gristmill.pipelines.dataflow.worker_package import write_source
from gristmill.pipelines.options.conversion_jobs import conversion_of, plan_of
from gristmill.pipelines.options.definitions import (
    PIPELINES,
    ConvertOptions,
    IndexOptions,
    LaunchOptions,
    Options,
    VerifyOptions,
)
from gristmill.pipelines.results.submission import Submission


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
    pipeline = next(name for name, cls in PIPELINES.items() if isinstance(options, cls))
    _set_defaults(beam_options, pipeline, options)
    notes = _check(options, launch, beam_options)
    with _worker_setup(beam_options):
        result = _run(options, beam_options)
    cloud = beam_options.view_as(GoogleCloudOptions)
    submission = Submission(
        pipeline=pipeline,
        state="submitted",
        target=_dataset(options),
        project=cloud.project,
        region=cloud.region,
        notes=tuple(notes),
    )
    if beam_options.view_as(TestOptions).dry_run:
        return dataclasses.replace(submission, state="dry run")
    if not result.has_job:
        return dataclasses.replace(
            submission, state="template", template=cloud.template_location
        )
    submission = dataclasses.replace(submission, job_id=result.job_id())
    return _wait(submission, result) if launch.wait else submission


def _target(options: Options) -> str:
    if isinstance(options, ConvertOptions):
        return options.output.rstrip("/")
    if isinstance(options, VerifyOptions):
        return options.dataset.rstrip("/")
    return options.files[0].rpartition("/")[0]


def _dataset(options: Options) -> str:
    """Returns the directory of the dataset, which is asked for what to index is."""
    target = _target(options)
    if isinstance(options, IndexOptions):
        path = options.files[0]
        if not has_magic(path) and storage_for(path).stat(path) is None:
            return path.rstrip("/")
    return target


def _set_defaults(
    beam_options: PipelineOptions, pipeline: str, options: Options
) -> None:
    """Sets defaults for Beam options that are not given."""
    cloud = beam_options.view_as(GoogleCloudOptions)
    for name in ("project", "region"):
        if not getattr(cloud, name):
            raise InputError(f"no {name} given for Dataflow", cure=f"give --{name}")
    target = _target(options)
    if cloud.temp_location is None:
        cloud.temp_location = cloud.staging_location
    if cloud.temp_location is None and target.startswith("gs://"):
        cloud.temp_location = f"gs://{split_path(target)[0]}/gristmill-tmp"
    if cloud.staging_location is None:
        cloud.staging_location = cloud.temp_location
    if cloud.job_name is None:
        # Dataflow runs one job of a name at a time: no two jobs write to one output.
        base = re.sub("[^a-z0-9]+", "-", layout.base_name(target).lower()).strip("-")
        place = hashlib.sha256(target.encode()).hexdigest()[:8]
        parts = ["gristmill", pipeline, *filter(None, [base[:30].strip("-")]), place]
        cloud.job_name = "-".join(parts)
    version = re.sub("[^a-z0-9_-]+", "-", __version__.lower())
    cloud.labels = [
        *(cloud.labels or []),
        f"gristmill={pipeline}",
        f"gristmill-version={version}",
    ]
    workers = beam_options.view_as(WorkerOptions)
    workers.machine_type = workers.machine_type or MACHINE_TYPE
    workers.disk_size_gb = workers.disk_size_gb or DISK_GB
    debug = beam_options.view_as(DebugOptions)
    if debug.number_of_worker_harness_threads is None:
        debug.number_of_worker_harness_threads = HARNESS_THREADS


def _check(
    options: Options, launch: LaunchOptions, beam_options: PipelineOptions
) -> list[str]:
    """Checks what can be checked before the job runs; returns remarks."""
    plan = plan_of(options) if isinstance(options, ConvertOptions) else None
    cloud = beam_options.view_as(GoogleCloudOptions)
    temporary = dict.fromkeys([cloud.temp_location, cloud.staging_location])
    uses = preflight.uses_of(options, temporary=filter(None, temporary))
    _check_worker_setup(options, beam_options)
    workers = beam_options.view_as(WorkerOptions)
    client = preflight.storage_client(cloud.project, anonymous=cloud.no_auth)
    if cloud.impersonate_service_account:
        notes = ["buckets were not checked: the job is submitted by another account"]
    else:
        zone = workers.worker_zone or workers.zone or ""
        region = workers.worker_region or zone.rpartition("-")[0] or cloud.region
        notes = preflight.check_buckets(
            uses, client=client, region=region, cross_region=launch.cross_region
        )
        preflight.check_inputs(uses, client=client)
    if isinstance(options, ConvertOptions) and plan is not None:
        splits = [job.split for job in conversion_of(options).jobs]
        notes += preflight.check_output(options, splits=splits)
        notes += check_disk(
            shard_bytes=plan.value if plan.kind == "shard_bytes" else None,
            threads=beam_options.view_as(DebugOptions).number_of_worker_harness_threads,
            machine_type=workers.machine_type,
            disk_gb=workers.disk_size_gb,
        )
    return notes


def _has_worker_setup(beam_options: PipelineOptions) -> bool:
    setup = beam_options.view_as(SetupOptions)
    workers = beam_options.view_as(WorkerOptions)
    return bool(
        setup.setup_file
        or setup.extra_packages
        or workers.sdk_container_image
        or setup.prebuild_sdk_container_engine
    )


def _check_worker_setup(options: Options, beam_options: PipelineOptions) -> None:
    setup = beam_options.view_as(SetupOptions)
    for path in (setup.setup_file, setup.requirements_file):
        if path is not None and not pathlib.Path(path).exists():
            raise InputError("no such file", where=path, cure="check the path")
    mapped = isinstance(options, ConvertOptions) and options.map is not None
    if mapped and not _has_worker_setup(beam_options):
        raise InputError(
            "the workers do not have the module of --map",
            expected="a package or an image that contains it",
            cure="give --sdk_container_image, or give --setup_file or --extra_package "
            "of a package that contains it and requires gristmill",
        )


@contextlib.contextmanager
def _worker_setup(beam_options: PipelineOptions) -> Iterator[None]:
    """Sends this package to the workers, unless they get it in another way."""
    if _has_worker_setup(beam_options):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="gristmill-") as directory:
        setup = beam_options.view_as(SetupOptions)
        setup.setup_file = str(write_source(pathlib.Path(directory)))
        yield


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
        raise JobError(
            "the job could not be submitted to Dataflow",
            got=str(e),
            cure="see deploy/README.md for the messages of Dataflow and what to do",
        ) from e


def _wait(submission: Submission, result: Any) -> Submission:
    """Waits until a job has finished."""
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException

    try:
        state = result.wait_until_finish()
    except DataflowRuntimeException as e:
        got = str(e)
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
