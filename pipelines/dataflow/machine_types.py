"""Machines of Dataflow workers: the disk and the memory that shards take on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.dataflow.job_inputs import Shards

# Converting a shard holds Python's interpreter lock: more threads do not make a
# process faster, they keep more shards in memory and on disk. With two, one waits for
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
_ARM_FAMILIES = ("c4a", "n4a", "t2a")
# Disk space of the system and the container image, rounded up.
_IMAGE_GB = 20
_GB_OF_A_CORE = {"highcpu": 1, "standard": 4, "highmem": 8}
# As deploy/README.md has it; the commit holds all shards.
_PROCESS_MB, _THREAD_MB, _COMMITTED_SHARD_MB = 400, 50, 0.001


def disk_gb_for(shard_bytes: int, *, machine_type: str | None, threads: int) -> int:
    """Returns the disk that a machine needs: a process a vCPU makes a shard a thread.

    >>> disk_gb_for(10**9, machine_type="e2-standard-4", threads=2)
    28
    """
    at_once = (cores_of(machine_type or MACHINE_TYPE) or 1) * threads
    return _IMAGE_GB + -(-at_once * shard_bytes // 10**9)


def check_machine(
    shards: Shards, *, threads: int, machine_type: str | None, disk_gb: int
) -> Iterator[str]:
    """Checks that a machine has the disk and the memory that a conversion takes.

    A shard takes at most about as much disk as its input, decompressed.

    Args:
        shards: The shards.
        threads: Harness threads of each process.
        machine_type: Such as `e2-standard-4`; None if Dataflow chooses it.
        disk_gb: Size of the machine's disk.

    Yields:
        Remarks for the user.

    Raises:
        InputError: It has too little.
    """
    cores = None if machine_type is None else cores_of(machine_type)
    if machine_type is None or cores is None:
        yield "disk and memory were not checked: " + (
            "Dataflow Prime chooses the machines"
            if machine_type is None
            else f"vCPUs of {machine_type} are not known"
        )
        return
    where = f"{machine_type} with {disk_gb} GB, {threads} harness threads"
    needed = disk_gb_for(
        shards.largest_bytes, machine_type=machine_type, threads=threads
    )
    if shards.total_bytes is not None:  # No more is on a disk than there is.
        needed = min(needed, _IMAGE_GB + -(-shards.total_bytes // 10**9))
    if needed > disk_gb:
        raise InputError(
            "the shards in progress do not fit on a worker's disk",
            where=where,
            expected=f"at least {needed:,} GB: {_IMAGE_GB} for system and image, and "
            f"up to {cores * threads} shards of {shards.largest_bytes / 1e9:,.2f} GB "
            "of input as it is stored",
            got=f"{disk_gb:,} GB",
            cure=f"give --disk_size_gb={needed}, a smaller --shard-size or more "
            "--num-shards, or fewer --number_of_worker_harness_threads",
        )
    memory_gb = memory_gb_of(machine_type)
    needed_mb = cores * (_PROCESS_MB + threads * _THREAD_MB)
    needed_gb = (needed_mb + shards.number * _COMMITTED_SHARD_MB) / 1000
    if memory_gb is not None and needed_gb > memory_gb:
        raise InputError(
            "the job does not fit into a worker's memory",
            where=where,
            expected=f"at least {needed_gb:.1f} GB for {cores} processes and the "
            f"commit of {shards.number:,} shards",
            got=f"{memory_gb:.1f} GB",
            cure="give a standard or highmem --worker_machine_type, or larger shards",
        )


def cores_of(machine_type: str) -> int | None:
    """Returns the number of vCPUs of a machine type, None if its name does not tell.

    >>> cores_of("e2-standard-4"), cores_of("n2-custom-8-16384"), cores_of("e2-micro")
    (4, 8, None)
    """
    match = re.fullmatch(r"(?:\w+-)*?(?:\w+-)(\d+)(?:-\w+)*", machine_type)
    return int(match[1]) if match else None


def memory_gb_of(machine_type: str) -> float | None:
    """Returns about the memory of a machine type, None if its name does not tell.

    >>> memory_gb_of("e2-standard-4"), memory_gb_of("custom-6-10240")
    (16, 10.24)
    """
    if match := re.fullmatch(r"(?:\w+-)?custom-\d+-(\d+)(?:-ext)?", machine_type):
        return int(match[1]) / 1000
    match = re.fullmatch(r"\w+-(highcpu|standard|highmem)-(\d+)", machine_type)
    return None if match is None else _GB_OF_A_CORE[match[1]] * int(match[2])


def takes_disk_type(machine_type: str) -> bool:
    """Returns whether a machine can have a disk of `DISK_TYPE`.

    >>> takes_disk_type("e2-standard-4"), takes_disk_type("n4-standard-4")
    (True, False)
    """
    return machine_type.partition("-")[0] in _SSD_FAMILIES


def is_arm(machine_type: str) -> bool:
    """Returns whether a machine has Arm processors.

    >>> is_arm("t2a-standard-4"), is_arm("t2d-standard-4")
    (True, False)
    """
    return machine_type.partition("-")[0] in _ARM_FAMILIES


def disk_type_path(disk_type: str, *, project: str, zone: str) -> str:
    """Returns a disk type as Dataflow takes it.

    Args:
        disk_type: Its name, such as `pd-ssd`, or its path.
        project: Project of the job.
        zone: Zone of the workers; "" where Dataflow chooses one.
    """
    if "/" in disk_type:
        return disk_type
    place = f"projects/{project}/zones/{zone}" if zone else "projects//zones/"
    return f"compute.googleapis.com/{place}/diskTypes/{disk_type}"
