"""What converting a terabyte on Dataflow costs: measured CPU seconds times prices.

    python -m benchmarks.dataflow_cost

writes deploy/cost.md. CPU and output size come from docs/performance/convert.json, a
measurement on one machine; requests from how the code reads and writes, which a test
counts; prices are inputs, stated in the page with their date. Nothing here was measured
on Google Cloud.
"""

from __future__ import annotations

import json
import pathlib
import statistics

from gristmill.pipelines.advice.dataflow_cost import Assumptions, Measured, cost_of
from gristmill.pipelines.advice.prices import Prices

ROOT = pathlib.Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "performance" / "convert.json"
PAGE = ROOT / "deploy" / "cost.md"
CONTESTANTS = {"records": "gristmill_2", "sample": "gristmill_sample_2"}
TERABYTE = 10**12


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
