"""The prices of Google Cloud, and what a conversion on Dataflow costs.

Sources, as published in 2025 for us-central1: cloud.google.com/dataflow/pricing (batch
workers: vCPU, memory), cloud.google.com/compute/disks-image-pricing (pd-ssd, per month
of 730 hours as Dataflow bills it by the hour), cloud.google.com/storage/pricing
(operations and storage of class Standard in one region, data transfer between regions
of North America). Prices change: look at your own before a large job.

Costs are measured CPU seconds times prices. Requests follow from how the code reads
and writes, which a test counts. Nothing here was measured on Google Cloud.
"""

from __future__ import annotations

import dataclasses
import math

PRICES_DATE = "2025"
PRICES_REGION = "us-central1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prices:
    """US dollars, as published for us-central1 in 2025; look at your own before use.

    Attributes:
        vcpu_hour: A vCPU of a batch worker, for an hour.
        memory_gb_hour: A GB of its memory, for an hour.
        disk_gb_hour: A GB of its SSD disk, for an hour.
        class_a: A request that writes or lists, to a bucket of class Standard.
        class_b: A request that reads, in the same class.
        gb_between_regions: A GB between two regions of North America.
        shuffled_gb: A GB that Dataflow shuffles for a batch job, before its reductions.
        gb_month: A GB in a bucket of class Standard, for a month.
    """

    vcpu_hour: float = 0.056
    memory_gb_hour: float = 0.003557
    disk_gb_hour: float = 0.000298
    class_a: float = 0.005 / 1000
    class_b: float = 0.0004 / 1000
    gb_between_regions: float = 0.02
    shuffled_gb: float = 0.011
    gb_month: float = 0.020


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Assumptions that were not measured.

    Attributes:
        busy: Share of a vCPU's time for the measured work. The rest goes into requests,
            encryption, waiting, uneven ends, and the runner itself.
        vcpu_speed: Speed relative to a core of the measured machine. A vCPU of E2 is
            a thread of a core that is shared: half of it where both are at work.
        start_minutes: Time from the start of a machine to its first shard.
        vcpus: vCPUs of one machine.
        memory_gb: Memory of one machine.
        disk_gb: Disk of one machine.
        machines: Number of concurrent machines.
        shard_bytes: Input of a shard.
        read_bytes: Input that one request reads.
        file_bytes: Size of an input file.
        class_a_per_shard: Requests that write, for each shard: it and its index.
        class_b_per_shard: Requests that read, for each shard, besides its input.
        disk_mb_per_second: Throughput of the disk, as published: 240 MiB/s for a
            machine and 0.48 MiB/s for a GiB of pd-ssd, at most 240 MiB/s for 4 vCPUs of
            E2.
    """

    busy: float = 0.7
    vcpu_speed: float = 1.0
    start_minutes: float = 4.0
    vcpus: int = 4
    memory_gb: float = 16.0
    disk_gb: float = 50.0
    machines: int = 10
    shard_bytes: int = 256 << 20
    read_bytes: int = 8 << 20
    file_bytes: int = 256 << 20
    class_a_per_shard: int = 2
    class_b_per_shard: int = 8
    disk_mb_per_second: float = 240 * 1.048576


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured cost of a conversion on one machine.

    Attributes:
        cpu_seconds_per_gb: CPU seconds for 10^9 bytes of input.
        output_ratio: Bytes written per byte read.
        cpu: Name of the processor.
    """

    cpu_seconds_per_gb: float
    output_ratio: float
    cpu: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """The duration of a conversion, and its cost in US dollars.

    Attributes:
        vcpu_hours: vCPU hours of workers.
        machine_mb_per_second: Maximum write rate of a machine: all its vCPUs busy.
        minutes: From the first machine's start to the end.
        class_a: Requests that write or list.
        class_b: Requests that read.
        workers: vCPUs, memory and disk.
        requests: All requests.
        between_regions: Traffic, if input and output are in a different region from the
            workers.
    """

    vcpu_hours: float
    machine_mb_per_second: float
    minutes: float
    class_a: int
    class_b: int
    workers: float
    requests: float
    between_regions: float


def cost_of(
    input_bytes: int,
    found: Measured,
    *,
    prices: Prices | None = None,
    given: Assumptions | None = None,
) -> Cost:
    """Returns the cost of a conversion.

    Args:
        input_bytes: Size of the input.
        found: The measurements.
        prices: US dollars.
        given: The assumptions.
    """
    prices, given = prices or Prices(), given or Assumptions()
    seconds_per_gb = found.cpu_seconds_per_gb / given.vcpu_speed
    work_hours = seconds_per_gb * input_bytes / 1e9 / given.busy / 3600
    start_hours = given.start_minutes / 60
    vcpus = given.vcpus * given.machines
    vcpu_hours = work_hours + start_hours * vcpus
    machine_hours = vcpu_hours / given.vcpus
    shards = math.ceil(input_bytes / given.shard_bytes)
    files = math.ceil(input_bytes / given.file_bytes)
    class_a = given.class_a_per_shard * shards + math.ceil(files / 1000)
    reads = math.ceil(input_bytes / given.read_bytes)
    class_b = given.class_b_per_shard * shards + reads + files
    return Cost(
        vcpu_hours=vcpu_hours,
        machine_mb_per_second=1000 * given.vcpus * found.output_ratio / seconds_per_gb,
        minutes=60 * vcpu_hours / vcpus,
        class_a=class_a,
        class_b=class_b,
        workers=vcpu_hours * prices.vcpu_hour
        + machine_hours * given.memory_gb * prices.memory_gb_hour
        + machine_hours * given.disk_gb * prices.disk_gb_hour,
        requests=class_a * prices.class_a + class_b * prices.class_b,
        between_regions=input_bytes
        / 1e9
        * (1 + found.output_ratio)
        * prices.gb_between_regions,
    )
