"""What converting a terabyte on Dataflow costs: measured CPU seconds times prices.

    python -m benchmarks.dataflow_cost

writes deploy/cost.md. CPU and output size come from docs/performance_convert.json, a
measurement on one machine; requests from how the code reads and writes, which a test
counts; prices are inputs, stated in the page with their date. Nothing here was measured
on Google Cloud.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import statistics

ROOT = pathlib.Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "performance_convert.json"
PAGE = ROOT / "deploy" / "cost.md"
CONTESTANTS = {"records": "gristmill_2", "sample": "gristmill_sample_2"}
TERABYTE = 10**12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prices:
    """US dollars, as published for us-central1 in 2025; look at your own before use.

    Attributes:
        vcpu_hour: A vCPU of a batch worker, for an hour.
        memory_gb_hour: A GB of its memory, for an hour.
        disk_gb_hour: A GB of its SSD disk, for an hour.
        class_a: A request that writes or lists, to a bucket of class Standard.
        class_b: A request that reads, likewise.
        gb_between_regions: A GB between two regions of North America.
    """

    vcpu_hour: float = 0.056
    memory_gb_hour: float = 0.003557
    disk_gb_hour: float = 0.000298
    class_a: float = 0.005 / 1000
    class_b: float = 0.0004 / 1000
    gb_between_regions: float = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What was not measured.

    Attributes:
        busy: Part of a vCPU's time that goes into what was measured. The rest goes
            into requests, encryption, waiting, uneven ends, and the runner itself.
        start_minutes: Time from the start of a machine to its first shard.
        vcpus: Of one machine.
        memory_gb: Of one machine.
        disk_gb: Of one machine.
        machines: How many run at once.
        shard_bytes: Input of a shard.
        read_bytes: Input that one request reads.
        file_bytes: Size of an input file.
        class_a_per_shard: Requests that write, for each shard: it and its index.
        class_b_per_shard: Requests that read, for each shard, besides its input.
        disk_mb_per_second: What the disk takes, as published: 240 MiB/s for a machine
            and 0.48 MiB/s for a GiB of pd-ssd, at most 240 MiB/s for 4 vCPUs of E2.
    """

    busy: float = 0.7
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
    """What a conversion took on one machine.

    Attributes:
        cpu_seconds_per_gb: For 10^9 bytes of input.
        output_ratio: Bytes written for each byte read.
        cpu: Which processor.
    """

    cpu_seconds_per_gb: float
    output_ratio: float
    cpu: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a conversion of so many bytes takes, and costs in US dollars.

    Attributes:
        vcpu_hours: Of workers.
        machine_mb_per_second: What a machine writes at most: all its vCPUs at work.
        minutes: From the first machine's start to the end.
        class_a: Requests that write or list.
        class_b: Requests that read.
        workers: vCPUs, memory and disk.
        requests: All requests.
        between_regions: Traffic, if input and output are in another region than the
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


def measured(check: str, path: pathlib.Path = MEASURED) -> Measured:
    """Returns the medians of a benchmark's runs.

    Args:
        check: `records` or `sample`.
        path: The benchmark's file.
    """
    report = json.loads(path.read_text(encoding="utf-8"))
    runs = [
        run
        for run in report["runs"]
        if run["contestant"] == CONTESTANTS[check]
        and run["kind"] == "main"
        and run["exit_code"] == 0
    ]
    return Measured(
        cpu_seconds_per_gb=statistics.median(
            run["cpu_seconds"] / (run["input_bytes"] / 1e9) for run in runs
        ),
        output_ratio=statistics.median(
            run["output_bytes"] / run["input_bytes"] for run in runs
        ),
        cpu=report["environment"]["cpu"],
    )


def cost_of(
    input_bytes: int,
    found: Measured,
    *,
    prices: Prices | None = None,
    given: Assumptions | None = None,
) -> Cost:
    """Returns what a conversion costs.

    Args:
        input_bytes: Size of the input.
        found: What was measured.
        prices: US dollars.
        given: What was not measured.
    """
    prices, given = prices or Prices(), given or Assumptions()
    work_hours = found.cpu_seconds_per_gb * input_bytes / 1e9 / given.busy / 3600
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
        machine_mb_per_second=1000
        * given.vcpus
        * found.output_ratio
        / found.cpu_seconds_per_gb,
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


def page() -> str:
    """Returns deploy/cost.md."""
    prices, given = Prices(), Assumptions()
    found = {check: measured(check) for check in CONTESTANTS}
    costs = {check: cost_of(TERABYTE, found[check]) for check in CONTESTANTS}
    rows = [
        ("CPU seconds for a GB, measured", "{0.cpu_seconds_per_gb:.1f}", found),
        ("bytes written for each byte read, measured", "{0.output_ratio:.2f}", found),
        ("MB/s that a machine writes at most", "{0.machine_mb_per_second:.0f}", costs),
        ("vCPU hours", "{0.vcpu_hours:.1f}", costs),
        (f"minutes on {given.machines} machines", "{0.minutes:.0f}", costs),
        ("workers: vCPUs, memory, disk", "${0.workers:.2f}", costs),
        ("requests that write or list (class A)", "{0.class_a:,}", costs),
        ("requests that read (class B)", "{0.class_b:,}", costs),
        ("requests", "${0.requests:.2f}", costs),
        ("network, all in one region", "$0.00", costs),
    ]
    table = ["| 1 TB (10^12 bytes) | `--check records` | `--check sample` |"]
    table.append("| --- | ---: | ---: |")
    for name, form, values in rows:
        shown = [form.format(values[check]) for check in CONTESTANTS]
        table.append(f"| {name} | {shown[0]} | {shown[1]} |")
    total = [f"**${costs[c].workers + costs[c].requests:.2f}**" for c in CONTESTANTS]
    table.append(f"| **together** | {total[0]} | {total[1]} |")
    traffic = costs["records"].between_regions
    standard = 0.12 * 1.048576 * given.disk_gb
    least_mb, most_mb = (
        given.busy * costs[check].machine_mb_per_second for check in CONTESTANTS
    )
    machine_hours = costs["records"].vcpu_hours / given.vcpus
    ssd = machine_hours * given.disk_gb * prices.disk_gb_hour
    return f"""\
# Cost of a terabyte

[benchmarks/dataflow_cost.py](../benchmarks/dataflow_cost.py) writes this page. It
multiplies CPU seconds measured on one machine ({found["records"].cpu}, C4-like text of
2.2 KB a record, zstd:3, local disk) by prices. **Nothing was measured on Google
Cloud.** Before a large job, convert 1 % of your data, and put your prices and
assumptions into the two classes at the top of the program.

{chr(10).join(table)}

If input and output are in another region of North America than the workers, traffic
adds ${traffic:.2f}, more than everything else together. Such submissions are refused
unless `--cross-region` is given. Traffic between continents costs several times more.

The disk is `pd-ssd`, ${ssd:.2f} of the sum: a standard one of {given.disk_gb:.0f} GB \
takes {standard:.0f} MB/s, by the published
0.12 MiB/s for a GiB. Of a machine whose vCPUs are at work {given.busy:.0%} of the time
it has to take {least_mb:.0f} to {most_mb:.0f} MB/s, if they are as fast as those \
that were measured.

No record passes through a shuffle. A job shuffles a few hundred bytes for each shard,
so Dataflow's price for shuffled bytes does not matter.

## Prices

US dollars in us-central1, as published in 2025.

| | |
| --- | ---: |
| vCPU hour of a batch worker | ${prices.vcpu_hour} |
| GB hour of memory | ${prices.memory_gb_hour} |
| GB hour of SSD disk (`pd-ssd`) | ${prices.disk_gb_hour:.6f} |
| 1,000 requests of class A, class Standard in one region | ${prices.class_a * 1000} |
| 1,000 requests of class B | ${prices.class_b * 1000} |
| GB between regions of North America | ${prices.gb_between_regions} |

The cost of storing the result and the image is not included.

## Assumptions

| | |
| --- | ---: |
| speed of a vCPU, relative to a core of the measured machine | 1 |
| share of a vCPU's time spent on the measured work; the rest goes to requests, TLS, \
waiting and the runner | {given.busy} |
| minutes from a machine's start to its first shard | {given.start_minutes:.0f} |
| machines | {given.machines} of {given.vcpus} vCPUs, {given.memory_gb:.0f} GB, \
{given.disk_gb:.0f} GB of SSD disk |
| what this disk takes, as published | {given.disk_mb_per_second:.0f} MB/s |
| input of a shard, and size of an input file | {given.shard_bytes >> 20} MiB |
| input read by one request | {given.read_bytes >> 20} MiB |
| requests for each shard, apart from reading its input | \
{given.class_a_per_shard} of class A, {given.class_b_per_shard} of class B |

A test counts these requests. Retries are not included.
"""


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
