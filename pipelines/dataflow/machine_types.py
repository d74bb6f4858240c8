"""Machines of Dataflow workers, and the disk space that shards need on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.dataflow.job_inputs import ShardSizes

# Converting a shard holds Python's interpreter lock: more threads do not make a
# process faster, they keep more shards in memory and on disk. With two, one waits for
# the bucket while the other computes.
HARNESS_THREADS = 2
MACHINE_TYPE = "e2-standard-4"
DISK_GB = 50
# Four vCPUs write about 150 MB/s of shards. Google publishes 0.12 MiB/s for a GiB of
# pd-standard, 6 MiB/s for this disk, and for pd-ssd 240 MiB/s for a machine and 0.48
# MiB/s for a GiB more: https://cloud.google.com/compute/docs/disks/performance.
# Dataflow takes these two types, for machines that can have them.
DISK_TYPE = "pd-ssd"
_DISK_FAMILIES = frozenset(
    [
        "c2",
        "c2d",
        "c3",
        "c3d",
        "custom",
        "e2",
        "m1",
        "m2",
        "m3",
        "n1",
        "n2",
        "n2d",
        "t2a",
        "t2d",
    ]
)
MAX_WORKERS = 50
# Disk space of the system and the container image, rounded up.
IMAGE_GB = 20


def check_disk(
    shards: ShardSizes, *, threads: int, machine_type: str | None, disk_gb: int
) -> Iterator[str]:
    """Checks that the shards in progress on one machine fit on its disk.

    A machine runs a process for each vCPU, and each process makes one shard per thread.
    A shard takes at most about as much space as its input, decompressed.

    Args:
        shards: Sizes of the shards.
        threads: Harness threads of each process.
        machine_type: Such as `e2-standard-4`; None if Dataflow chooses it.
        disk_gb: Size of the machine's disk.

    Yields:
        Remarks for the user.

    Raises:
        InputError: The shards do not fit.
    """
    if machine_type is None:
        yield "disk space was not checked: Dataflow Prime chooses the machines"
        return
    cores = cores_of(machine_type)
    if cores is None:
        yield f"disk space was not checked: vCPUs of {machine_type} are not known"
        return
    room = max(disk_gb - IMAGE_GB, 0) * 10**9
    at_once = cores * threads
    if shards.largest_bytes is None:
        yield (
            f"a machine makes {at_once} shards at once on "
            f"{room / 1e9:,.0f} GB of disk: {room / at_once / 1e9:,.1f} GB for each"
        )
        return
    held = shards.largest_bytes * at_once
    if shards.total_bytes is not None:
        held = min(held, shards.total_bytes)
    if held > room:
        needed = IMAGE_GB + -(-held // 10**9)
        raise InputError(
            "the shards in progress do not fit on a worker's disk",
            where=f"{machine_type} with {disk_gb} GB, {threads} harness threads",
            expected=f"at least {needed:,} GB for up to {at_once} shards of up to "
            f"{shards.largest_bytes / 1e9:,.2f} GB of decompressed input, and "
            f"{IMAGE_GB} GB for system and image",
            got=f"{disk_gb:,} GB",
            cure=f"give --disk_size_gb={needed}, a smaller --shard-size or more "
            "--num-shards, or fewer --number_of_worker_harness_threads",
        )


def cores_of(machine_type: str) -> int | None:
    """Returns the number of vCPUs of a machine type, None if its name does not tell.

    >>> cores_of("e2-standard-4"), cores_of("n2-custom-8-16384"), cores_of("e2-micro")
    (4, 8, None)
    """
    match = re.fullmatch(r"(?:\w+-)*?(?:\w+-)(\d+)(?:-\w+)*", machine_type)
    return int(match[1]) if match else None


def takes_disk_type(machine_type: str) -> bool:
    """Returns whether a machine can have a disk of `DISK_TYPE`.

    >>> takes_disk_type("e2-standard-4"), takes_disk_type("n4-standard-4")
    (True, False)
    """
    return machine_type.partition("-")[0] in _DISK_FAMILIES


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
