"""The cost of converting a terabyte on Dataflow: measured CPU seconds times prices.

    python -m benchmarks.dataflow_cost

writes deploy/cost.md. CPU seconds come from the table of benchmarks.harness_threads in
deploy/README.md, output size from benchmarks/results/convert.json: measurements on one
machine. Requests come from how the code reads and writes, which a test counts; prices
are inputs, stated in the page with their date. Nothing here was measured on Google
Cloud.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import statistics

from gristmill.pipelines.advice.cost import (
    Assumptions,
    Cost,
    Measured,
    Prices,
    cost_of,
)
from gristmill.pipelines.dataflow.machine_types import HARNESS_THREADS

ROOT = pathlib.Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "results" / "convert.json"
PAGE = ROOT / "deploy" / "cost.md"
THREADS = ROOT / "deploy" / "README.md"
CONTESTANTS = {"records": "gristmill_2", "sample": "gristmill_sample_2"}
TERABYTE = 10**12
# A vCPU's speed, relative to a core of the measured machine.
SPEEDS = {"a vCPU is a core": 1.0, "a vCPU is half a core": 0.5}


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


def from_bucket() -> Measured:
    """Returns a worker's traffic with buckets: the upper end."""
    text = THREADS.read_text(encoding="utf-8")
    row = re.search(
        rf"^\| {HARNESS_THREADS} \| [\d.]+ to ([\d.]+) \|", text, re.MULTILINE
    )
    if row is None:
        raise LookupError(f"no row of {HARNESS_THREADS} threads in {THREADS}")
    return dataclasses.replace(measured("records"), cpu_seconds_per_gb=float(row[1]))


def costs_of() -> dict[str, Cost]:
    """Returns the cost of a terabyte, by the speed of a vCPU."""
    return {
        name: cost_of(TERABYTE, from_bucket(), given=Assumptions(vcpu_speed=speed))
        for name, speed in SPEEDS.items()
    }


def page() -> str:
    """Returns deploy/cost.md."""
    prices, given = Prices(), Assumptions()
    found, local = from_bucket(), [measured(check) for check in CONTESTANTS]
    costs = costs_of()
    rows = [
        ("MB/s that a machine writes at most", "{0.machine_mb_per_second:.0f}"),
        ("vCPU hours", "{0.vcpu_hours:.1f}"),
        (f"minutes on {given.machines} machines", "{0.minutes:.0f}"),
        ("workers: vCPUs, memory, disk", "${0.workers:.2f}"),
        ("requests that write or list (class A)", "{0.class_a:,}"),
        ("requests that read (class B)", "{0.class_b:,}"),
        ("requests", "${0.requests:.2f}"),
        ("network, all in one region", "$0.00"),
    ]
    table = [f"| 1 TB (10^12 bytes) | {' | '.join(SPEEDS)} |"]
    table.append("| --- | ---: | ---: |")
    for name, form in rows:
        shown = " | ".join(form.format(cost) for cost in costs.values())
        table.append(f"| {name} | {shown} |")
    total = [f"**${cost.workers + cost.requests:.2f}**" for cost in costs.values()]
    table.append(f"| **together** | {' | '.join(total)} |")
    fast, slow = costs.values()
    traffic = fast.between_regions
    standard = 0.12 * 1.048576 * given.disk_gb
    most_mb, least_mb = (
        given.busy * cost.machine_mb_per_second for cost in costs.values()
    )
    ssd = slow.vcpu_hours / given.vcpus * given.disk_gb * prices.disk_gb_hour
    shuffled = TERABYTE / 1e9 * prices.shuffled_gb
    return f"""\
# Cost of a terabyte

[benchmarks/dataflow_cost.py](../benchmarks/dataflow_cost.py) writes this page. It
multiplies CPU seconds measured on one machine ({found.cpu}, C4-like text of
2.2 KB a record, zstd:3, `--check records`) by prices. **Nothing was measured on Google
Cloud.** Before a large job, convert 1 % of your data, and put your prices and
assumptions into the two classes at the top of the program.

A worker's process took {found.cpu_seconds_per_gb} CPU seconds for a GB
[from a bucket and to one](README.md#threads-memory-and-disk-of-a-worker), with Beam,
without TLS. From a local disk to one it takes {local[0].cpu_seconds_per_gb:.1f}, and \
{local[1].cpu_seconds_per_gb:.1f} with `--check sample`. It
wrote {found.output_ratio:.2f} bytes for each byte read. A vCPU of E2 is a thread of a \
core that is shared: with
both threads at work it is about half a core. Expect the second column.

{chr(10).join(table)}

If input and output are in another region of North America than the workers, traffic
adds ${traffic:.2f}, more than everything else together. Such submissions are refused
unless `--cross-region` is given. Traffic between continents costs several times more.

The disk is `pd-ssd`, ${ssd:.2f} of the sum: a standard one of {given.disk_gb:.0f} GB \
takes {standard:.0f} MB/s, by the published
0.12 MiB/s for a GiB. For a machine whose vCPUs are at work {given.busy:.0%} of the time
it has to take {least_mb:.0f} to {most_mb:.0f} MB/s, if they are as fast as those \
that were measured.

No record of a conversion passes through a shuffle. A job shuffles a few hundred bytes
for each shard, so Dataflow's price for shuffled bytes does not matter.

## What is not in this sum

| what | what it adds |
| --- | --- |
| `--records-per-shard` | all inputs are read once more, to count their records |
| a Parquet row group that several shards share | each of them reads and decodes it |
| `--overwrite` | the bucket holds both copies until the commit |
| a run after a failure | listing the inputs again, and what was in progress |
| `gristmill verify` on Dataflow | reading the result, and its CPU seconds |
| [`WriteArrayRecords`](../docs/reference/transforms.md) in a pipeline of your own | \
all records are shuffled, ${shuffled:.0f} for a terabyte; without `num_shards` they \
are written and read once more before |
| retries, logs, the launcher of a template (a machine for some minutes) | little |

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
| GB that is shuffled, before reductions | ${prices.shuffled_gb} |

The cost of storing the result and the image is not included.

## Assumptions

| | |
| --- | ---: |
| speed of a vCPU, relative to a core of the measured machine | 1, or 0.5 |
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
