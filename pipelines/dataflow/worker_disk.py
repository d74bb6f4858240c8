"""What Dataflow's workers are made of, and what fits on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gristmill.dataset.errors import InputError

# Making a shard holds Python's lock: more threads of a process do not save any of its
# time, they hold more shards in memory and on disk. With two, one waits for the bucket
# while the other computes. benchmarks/harness_threads.py measures it.
HARNESS_THREADS = 2
MACHINE_TYPE = "e2-standard-4"
DISK_GB = 50
# What the system and the container image take of the disk, generously.
IMAGE_GB = 20


def check_disk(
    *, shard_bytes: int | None, threads: int, machine_type: str, disk_gb: int
) -> Iterator[str]:
    """Checks that the shards in flight on one machine fit on its disk.

    A machine has a process for each of its vCPUs, and makes as many shards in each as
    that has threads. A shard takes at most about its input.

    Args:
        shard_bytes: Input of one shard, where it is known.
        threads: Harness threads of a process.
        machine_type: Such as `e2-standard-4`.
        disk_gb: Size of the machine's disk.

    Yields:
        What a person should know.

    Raises:
        InputError: They do not fit.
    """
    cores = cores_of(machine_type)
    if cores is None:
        yield f"machine type {machine_type}: its disk was not compared with the shards"
        return
    room = max(disk_gb - IMAGE_GB, 0) * 10**9
    at_once = cores * threads
    if shard_bytes is None:
        yield (
            f"a machine makes {at_once} shards at once on "
            f"{room / 1e9:,.0f} GB of disk: {room / at_once / 1e9:,.1f} GB for each"
        )
    elif shard_bytes * at_once > room:
        needed = IMAGE_GB + -(-shard_bytes * at_once // 10**9)
        raise InputError(
            "the shards in flight do not fit on a worker's disk",
            where=f"{machine_type} with {disk_gb} GB, {threads} harness threads",
            expected=f"at least {needed:,} GB for {at_once} shards of up to "
            f"{shard_bytes / 1e9:,.2f} GB and {IMAGE_GB} GB of system and image",
            got=f"{disk_gb:,} GB",
            cure=f"give --disk_size_gb={needed}, a smaller --shard-size, or fewer "
            "--number_of_worker_harness_threads",
        )


def cores_of(machine_type: str) -> int | None:
    """Returns the vCPUs of a machine type, None if its name does not say.

    >>> cores_of("e2-standard-4"), cores_of("n2-custom-8-16384"), cores_of("e2-micro")
    (4, 8, None)
    """
    match = re.fullmatch(r"(?:\w+-)*?(?:\w+-)(\d+)(?:-\w+)*", machine_type)
    return int(match[1]) if match else None
