"""Machines of Dataflow workers, and the disk space that shards need on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gristmill.dataset.errors import InputError
from gristmill.pipelines.dataflow.job_inputs import ShardSizes

# Converting a shard holds Python's interpreter lock: more threads do not make a
# process faster, they keep more shards in memory and on disk. With two, one waits for
# the bucket while the other computes. benchmarks/harness_threads.py measures it.
HARNESS_THREADS = 2
MACHINE_TYPE = "e2-standard-4"
DISK_GB = 50
# Disk space of the system and the container image, rounded up.
IMAGE_GB = 20


def check_disk(
    shards: ShardSizes, *, threads: int, machine_type: str, disk_gb: int
) -> Iterator[str]:
    """Checks that the shards in progress on one machine fit on its disk.

    A machine runs a process for each vCPU, and each process makes one shard per thread.
    A shard takes at most about as much space as its input, decompressed.

    Args:
        shards: Sizes of the shards.
        threads: Harness threads of each process.
        machine_type: Such as `e2-standard-4`.
        disk_gb: Size of the machine's disk.

    Yields:
        Remarks for the user.

    Raises:
        InputError: The shards do not fit.
    """
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
