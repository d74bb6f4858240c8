"""Prices of Google Cloud, in one table.

Sources, as published in 2025 for us-central1: cloud.google.com/dataflow/pricing (batch
workers: vCPU, memory), cloud.google.com/compute/disks-image-pricing (pd-ssd, per month
of 730 hours as Dataflow bills it by the hour), cloud.google.com/storage/pricing
(operations and storage of class Standard in one region, data transfer between regions
of North America). Prices change: look at your own before a large job.
"""

from __future__ import annotations

import dataclasses

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
