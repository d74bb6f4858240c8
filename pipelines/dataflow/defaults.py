"""The workers of a Dataflow job: defaults for machines, disks and other options."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    WorkerOptions,
)

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.paths import split_path
from gristmill.pipelines.options.conversion_jobs import plan_of
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    Options,
    VerifyOptions,
)
from gristmill.transforms.beam.same_code import sources_digest
from gristmill.transforms.planning.shard_plan import DEFAULT_SHARD_BYTES, PlanOptions

# Converting a shard holds Python's interpreter lock, so more threads do not make a
# process faster, but keep more shards in memory and on disk. With two, one waits for
# the bucket while the other computes.
HARNESS_THREADS = 2
MACHINE_TYPE = "e2-standard-4"
# Four vCPUs write about 150 MB/s of shards. Google publishes 0.12 MiB/s for a GiB of
# pd-standard, 12 MiB/s for this disk, and for pd-ssd 240 MiB/s for a machine and 0.48
# MiB/s for a GiB more: https://cloud.google.com/compute/docs/disks/performance.
DISK_TYPE = "pd-ssd"
DISK_GB = 100
MAX_WORKERS = 50
_SSD_FAMILIES = (
    *("c2", "c2d", "c3", "c3d", "custom", "e2", "m1", "m2", "m3"),
    *("n1", "n2", "n2d", "t2a", "t2d"),
)
ARM_FAMILIES = ("c4a", "n4a", "t2a")
# Disk space of the system and the container image, rounded up.
_IMAGE_GB = 20
_GB_OF_A_CORE = {"highcpu": 1, "standard": 4, "highmem": 8}
# As in deploy/README.md; the commit holds all shards.
_PROCESS_MB, _THREAD_MB, _COMMITTED_SHARD_MB = 400, 50, 0.001


def set_defaults(beam_options: PipelineOptions, options: Options) -> None:
    """Sets defaults for Beam options that are not given.

    Each can be turned off: `--max_num_workers=0` and `--worker_disk_type=` leave the
    choice to Dataflow; `--use_public_ips` and `--labels=` override ours.
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
        # Dataflow runs one job of a name at a time, so it refuses a second one for this
        # output, unless it is a template's, which has a name.
        base = re.sub("[^a-z0-9]+", "-", layout.base_name(target).lower())
        base = base.strip("-")[:30].strip("-")
        place = hashlib.sha256(target.encode()).hexdigest()[:8]
        words = ["gristmill", options.command, base, place]
        cloud.job_name = "-".join(filter(None, words))
    given = cloud.labels or []
    # Of two labels with one key, Beam takes the last. An empty one removes ours.
    ours = [f"gristmill={options.command}", f"gristmill-sources={sources_digest()}"]
    cloud.labels = [*([] if "" in given else ours), *filter(None, given)]
    plan = plan_of(options) if isinstance(options, ConvertOptions) else PlanOptions()
    size = plan.value if plan.kind == "shard_bytes" else None
    shard_bytes = (size or DEFAULT_SHARD_BYTES) * copies_of(options)
    dataflow_defaults(beam_options, shard_bytes=shard_bytes)


def dataflow_defaults(
    options: PipelineOptions, *, shard_bytes: int = DEFAULT_SHARD_BYTES
) -> PipelineOptions:
    """Sets options of Dataflow's workers that are not given, for any pipeline.

    These are machine, disk, threads, number and addresses of workers, as for `gristmill
    convert`. Other runners ignore them.

    Args:
        options: Options of the pipeline, which are changed.
        shard_bytes: Bytes that a thread holds on disk: the input of a shard, or a group
            of `WriteArrayRecords`.

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
        family = workers.machine_type.partition("-")[0]
        if workers.disk_type is None and family in _SSD_FAMILIES:
            workers.disk_type = DISK_TYPE
    if workers.disk_type and "/" not in workers.disk_type:
        zone = workers.worker_zone or workers.zone
        place = f"projects/{cloud.project}/zones/{zone}" if zone else "projects//zones/"
        workers.disk_type = (
            f"compute.googleapis.com/{place}/diskTypes/{workers.disk_type}"
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
    """Returns the number of copies of a shard's input on a worker's disk."""
    return 2 if options.command == "pack" else 1


def target_of(options: Options) -> str:
    """Returns the directory of a job's dataset."""
    if isinstance(options, ConvertOptions):
        return options.output.rstrip("/")
    if isinstance(options, VerifyOptions):
        return options.dataset.rstrip("/")
    return options.files[0].rpartition("/")[0]


def disk_gb_for(shard_bytes: int, *, machine_type: str | None, threads: int) -> int:
    """Returns the disk of a machine with a process per vCPU, and a shard per thread.

    >>> disk_gb_for(10**9, machine_type="e2-standard-4", threads=2)
    28
    """
    at_once = (cores_of(machine_type or MACHINE_TYPE) or 1) * threads
    return _IMAGE_GB + -(-at_once * shard_bytes // 10**9)


def check_machine(shards: int, largest_bytes: int, beam: Any) -> Iterator[str]:
    """Checks that a machine has the disk and the memory for a conversion.

    A shard takes at most about as much disk as its decompressed input.

    Args:
        shards: Minimum number of shards.
        largest_bytes: Stored input of the largest.
        beam: All options of Beam.

    Yields:
        Remarks for the user.

    Raises:
        InputError: The machine has too little of one.
    """
    machine, disk_gb = beam.machine_type, beam.disk_size_gb
    threads, cores = beam.number_of_worker_harness_threads, cores_of(machine or "")
    if cores is None:
        yield (
            f"disk and memory were not checked: vCPUs of {machine} are not known"
            if machine
            else "disk and memory were not checked: Dataflow Prime chooses the machines"
        )
        return
    where = f"{machine} with {disk_gb} GB, {threads} harness threads"
    needed = disk_gb_for(largest_bytes, machine_type=machine, threads=threads)
    if needed > disk_gb:
        raise InputError(
            "the shards in progress do not fit on a worker's disk",
            where=where,
            expected=f"at least {needed:,} GB: {_IMAGE_GB} for system and image, and "
            f"up to {cores * threads} shards of {largest_bytes / 1e9:,.2f} GB "
            "of input as it is stored",
            got=f"{disk_gb:,} GB",
            cure=f"give --disk_size_gb={needed}, a smaller --shard-size or more "
            "--num-shards, or fewer --number_of_worker_harness_threads",
        )
    memory_gb = memory_gb_of(machine)
    needed_mb = cores * (_PROCESS_MB + threads * _THREAD_MB)
    needed_gb = (needed_mb + shards * _COMMITTED_SHARD_MB) / 1000
    if memory_gb is not None and needed_gb > memory_gb:
        raise InputError(
            "the job does not fit into a worker's memory",
            where=where,
            expected=f"at least {needed_gb:.1f} GB for {cores} processes and the "
            f"commit of {shards:,} shards",
            got=f"{memory_gb:.1f} GB",
            cure="give a standard or highmem --worker_machine_type, or larger shards",
        )


def cores_of(machine_type: str) -> int | None:
    """Returns the number of vCPUs of a machine type, None if not in its name.

    >>> cores_of("e2-standard-4"), cores_of("n2-custom-8-16384"), cores_of("e2-micro")
    (4, 8, None)
    """
    match = re.fullmatch(r"(?:\w+-)*?(?:\w+-)(\d+)(?:-\w+)*", machine_type)
    return int(match[1]) if match else None


def memory_gb_of(machine_type: str) -> float | None:
    """Returns the approximate memory of a machine type, None if not in its name.

    >>> memory_gb_of("e2-standard-4"), memory_gb_of("custom-6-10240")
    (16, 10.24)
    """
    if match := re.fullmatch(r"(?:\w+-)?custom-\d+-(\d+)(?:-ext)?", machine_type):
        return int(match[1]) / 1000
    match = re.fullmatch(r"\w+-(highcpu|standard|highmem)-(\d+)", machine_type)
    return None if match is None else _GB_OF_A_CORE[match[1]] * int(match[2])
