"""Options of a Dataflow job that are not given."""

from __future__ import annotations

import hashlib
import re

from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    WorkerOptions,
)

from gristmill import __version__
from gristmill.dataset.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.object_names import split_path
from gristmill.pipelines.dataflow.worker_disk import (
    DISK_GB,
    HARNESS_THREADS,
    MACHINE_TYPE,
)
from gristmill.pipelines.options.definitions import (
    ConvertOptions,
    Options,
    VerifyOptions,
)


def set_defaults(
    beam_options: PipelineOptions, pipeline: str, options: Options
) -> None:
    """Sets defaults for Beam options that are not given."""
    cloud = beam_options.view_as(GoogleCloudOptions)
    for name in ("project", "region"):
        if not getattr(cloud, name):
            raise InputError(f"no {name} given for Dataflow", cure=f"give --{name}")
    target = target_of(options)
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


def target_of(options: Options) -> str:
    """Returns the directory that a job is about."""
    if isinstance(options, ConvertOptions):
        return options.output.rstrip("/")
    if isinstance(options, VerifyOptions):
        return options.dataset.rstrip("/")
    return options.files[0].rpartition("/")[0]
