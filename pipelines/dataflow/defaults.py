"""Options of a Dataflow job that are not given."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    WorkerOptions,
)

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.paths import split_path
from gristmill.pipelines.dataflow.machine_types import (
    DISK_GB,
    DISK_TYPE,
    HARNESS_THREADS,
    MACHINE_TYPE,
    MAX_WORKERS,
    disk_gb_for,
    disk_type_path,
    takes_disk_type,
)
from gristmill.pipelines.options.conversion_jobs import plan_of
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    Options,
    VerifyOptions,
)
from gristmill.transforms.beam.same_code import sources_digest
from gristmill.transforms.planning.shard_plan import DEFAULT_SHARD_BYTES, PlanOptions


def set_defaults(
    beam_options: PipelineOptions, pipeline: str, options: Options
) -> None:
    """Sets defaults for Beam options that are not given.

    Each can be turned off: `--max_num_workers=0` and `--worker_disk_type=` leave the
    choice to Dataflow, `--use_public_ips` and `--labels=` do what they say.
    """
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
        # Dataflow runs one job of a name at a time: a second one for this output is
        # refused, unless it is a template's, which has a name.
        base = re.sub("[^a-z0-9]+", "-", layout.base_name(target).lower()).strip("-")
        place = hashlib.sha256(target.encode()).hexdigest()[:8]
        parts = ["gristmill", pipeline, *filter(None, [base[:30].strip("-")]), place]
        cloud.job_name = "-".join(parts)
    cloud.labels = _labels(cloud.labels or [], pipeline)
    plan = plan_of(options) if isinstance(options, ConvertOptions) else PlanOptions()
    given = plan.value if plan.kind == "shard_bytes" else None
    shard_bytes = (given or DEFAULT_SHARD_BYTES) * copies_of(options)
    dataflow_defaults(beam_options, shard_bytes=shard_bytes)


def _labels(given: Sequence[str], pipeline: str) -> list[str]:
    """Returns the labels of a job: those given, and ours unless one given is empty."""
    if "" in given:
        return [label for label in given if label]
    # Of two with one key, Beam takes the last.
    return [f"gristmill={pipeline}", f"gristmill-sources={sources_digest()}", *given]


def dataflow_defaults(
    options: PipelineOptions, *, shard_bytes: int = DEFAULT_SHARD_BYTES
) -> PipelineOptions:
    """Sets options of Dataflow's workers that are not given, for any pipeline.

    Machine, disk, threads, number and addresses of workers, as `gristmill convert` has
    them. Other runners ignore them.

    Args:
        options: Options of the pipeline, which are changed.
        shard_bytes: What a thread holds on disk: the input of a shard, or what a group
            of `WriteArrayRecords` takes.

    Returns:
        The same options.
    """
    cloud = options.view_as(GoogleCloudOptions)
    workers = options.view_as(WorkerOptions)
    debug = options.view_as(DebugOptions)
    if debug.number_of_worker_harness_threads is None:
        debug.number_of_worker_harness_threads = HARNESS_THREADS
    # Dataflow Prime chooses machines and disks itself.
    if "enable_prime" not in (cloud.dataflow_service_options or []):
        workers.machine_type = workers.machine_type or MACHINE_TYPE
        if workers.disk_type is None and takes_disk_type(workers.machine_type):
            workers.disk_type = DISK_TYPE
    if workers.disk_type:
        zone = workers.worker_zone or workers.zone or ""
        workers.disk_type = disk_type_path(
            workers.disk_type, project=cloud.project, zone=zone
        )
    if not workers.disk_size_gb:
        needed = disk_gb_for(
            shard_bytes,
            machine_type=workers.machine_type,
            threads=debug.number_of_worker_harness_threads,
        )
        workers.disk_size_gb = max(DISK_GB, needed)
    if workers.max_num_workers is None:
        workers.max_num_workers = max(MAX_WORKERS, workers.num_workers or 0)
    if workers.use_public_ips is None:
        workers.use_public_ips = False
    return options


def copies_of(options: Options) -> int:
    """Returns how often what a shard is made of is on a worker's disk at once."""
    return 2 if options.command == "pack" else 1


def target_of(options: Options) -> str:
    """Returns the directory that a job is about."""
    if isinstance(options, ConvertOptions):
        return options.output.rstrip("/")
    if isinstance(options, VerifyOptions):
        return options.dataset.rstrip("/")
    return options.files[0].rpartition("/")[0]
