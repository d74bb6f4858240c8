"""Measurement of a conversion's CPU time, by converting parts of the inputs.

The code is that of `gristmill convert`, in as many worker processes as it would have:
cores that share caches and memory are slower together. Small parts are converted and
then larger ones that begin at the same places. Their difference leaves out the fixed
cost of each shard and process.
"""

from __future__ import annotations

import dataclasses
import functools
import resource
import tempfile
import time
from collections.abc import Sequence

from gristmill.pipelines.advice.sample_places import InputPart, plan_of_parts
from gristmill.pipelines.local.pool import call_apart, map_unordered
from gristmill.transforms.conversion.begin_job import plan_job
from gristmill.transforms.conversion.convert_shard import convert_shard
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.prepared_job import DescriptionVersions, PreparedJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from gristmill.transforms.sources.input_files import InputFiles

_SMALL_BYTES = 256 << 10
_LARGE_BYTES = 32 << 20
_PLACES = 3  # Per process.
_MOST_PROCESSES = 16
# Minimum difference in CPU seconds of the larger parts, in each process.
_SECONDS = 0.5
_MOST_SECONDS = 1.5
_MOST_REGIONS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionCpu:
    """CPU seconds of a conversion on this machine.

    Attributes:
        start_seconds: For a process to start.
        shard_seconds: For a shard, whatever its size.
        gb_seconds: For 10^9 bytes of input, as stored.
        processes: Number of processes measured at once.
        measured_bytes: Bytes of the input that they converted.
    """

    start_seconds: float
    shard_seconds: float
    gb_seconds: float
    processes: int
    measured_bytes: int

    def total(self, input_bytes: int, *, shards: int, workers: int) -> float:
        """Returns the CPU seconds of a whole conversion.

        Args:
            input_bytes: Size of its input.
            shards: Number of its shards.
            workers: Number of processes; one more starts them.
        """
        processes = workers + 1 if workers > 1 else 1
        return (
            processes * self.start_seconds
            + shards * self.shard_seconds
            + self.gb_seconds * input_bytes / 1e9
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredParts:
    """The measurements of one process.

    Attributes:
        warm_seconds: CPU seconds of imports and one-time setup.
        small_seconds: CPU seconds of the small parts.
        small_bytes: Their size.
        large_seconds: CPU seconds of the large parts.
        large_bytes: Their size.
        shards: Number of parts of each kind.
        all_seconds: CPU seconds of the process since the measurement began.
    """

    warm_seconds: float
    small_seconds: float
    small_bytes: int
    large_seconds: float
    large_bytes: int
    shards: int
    all_seconds: float


def measure_cpu(
    job: ConversionJob, files: InputFiles, begins: Sequence[int], *, workers: int
) -> ConversionCpu:
    """Converts parts of the inputs of a job, and measures their CPU time.

    Args:
        job: The job.
        files: Its input files.
        begins: Where parts can begin, in the line of all stored bytes.
        workers: Number of processes.

    Raises:
        GristmillError: The conversion of a part failed.
        WorkerDiedError: A process ended before it was done.
    """
    processes = min(workers, _MOST_PROCESSES)
    # Each process has its own places, as far as there are enough.
    places = [
        tuple(begins[number::processes][:_PLACES]) or tuple(begins[:1])
        for number in range(processes)
    ]
    measure = functools.partial(_measure_places, job, files)
    before = _children_seconds()
    if processes == 1:  # This process has done much else.
        found = [call_apart(functools.partial(measure, places[0]))]
    else:
        found = list(map_unordered(measure, places, workers=processes))
    return cpu_of(found, _children_seconds() - before)


def _children_seconds() -> float:
    """Returns the CPU seconds of ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_of(found: Sequence[MeasuredParts], process_seconds: float) -> ConversionCpu:
    """Returns the combined measurements of all processes.

    Args:
        found: Measurements of each process.
        process_seconds: CPU seconds of these processes, from their start to their end.
    """
    small = sum(one.small_seconds for one in found)
    small_bytes = sum(one.small_bytes for one in found)
    large = sum(one.large_seconds for one in found)
    large_bytes = sum(one.large_bytes for one in found)
    shards = sum(one.shards for one in found)
    if large_bytes >= 2 * small_bytes and large > small:
        slope = (large - small) / (large_bytes - small_bytes)
        each = max(0.0, small - slope * small_bytes) / shards
    else:  # The input is too small to tell the two apart.
        slope, each = large / max(1, large_bytes), 0.0
    around = process_seconds - sum(one.all_seconds for one in found)
    warm = sum(one.warm_seconds for one in found)
    return ConversionCpu(
        start_seconds=max(0.0, around + warm) / len(found),
        shard_seconds=each,
        gb_seconds=slope * 1e9,
        processes=len(found),
        measured_bytes=large_bytes,
    )


def _measure_places(
    job: ConversionJob, files: InputFiles, begins: tuple[int, ...]
) -> MeasuredParts:
    """Measures the conversion of parts in this process."""
    start = time.process_time()
    with tempfile.TemporaryDirectory(prefix="gristmill-plan-") as directory:

        def convert(part_bytes: int) -> tuple[float, int]:
            parts = _parts(files, begins, part_bytes)
            return _convert(job, files, parts, f"{directory}/{time.monotonic_ns()}")

        first, _ = convert(_SMALL_BYTES)
        small, small_bytes = convert(_SMALL_BYTES)
        large, large_bytes = small, small_bytes
        part_bytes = _SMALL_BYTES
        while (
            large - small < _SECONDS
            and part_bytes < _LARGE_BYTES
            and time.process_time() - start < _MOST_SECONDS
        ):
            # As many bytes as would take long enough, within a cautious limit.
            missing = _SECONDS / max(large - small, _SECONDS / 32)
            part_bytes = min(int(part_bytes * min(max(missing, 2), 16)), _LARGE_BYTES)
            before, (large, large_bytes) = large_bytes, convert(part_bytes)
            if large_bytes == before:
                break  # There is no more.
    return MeasuredParts(
        warm_seconds=max(0.0, first - small),
        small_seconds=small,
        small_bytes=small_bytes,
        large_seconds=large,
        large_bytes=large_bytes,
        shards=len(set(begins)),
        all_seconds=time.process_time() - start,
    )


def _parts(
    files: InputFiles, begins: Sequence[int], part_bytes: int
) -> list[InputPart]:
    """Returns parts of about a size that begin at some places, without overlap."""
    total = int(files.sizes.sum())
    places = sorted(set(begins))
    ends = [*places[1:], total]
    return [
        InputPart(begin, min(begin + part_bytes, end), 0.0)
        for begin, end in zip(places, ends, strict=True)
    ]


def _convert(
    job: ConversionJob, files: InputFiles, parts: list[InputPart], output: str
) -> tuple[float, int]:
    """Converts parts, each to a shard; returns CPU seconds, and their size."""
    plan, shards = plan_of_parts(parts, files.sizes, files.splittable)
    job = dataclasses.replace(
        job,
        output=output,
        plan=PlanOptions(),
        # Damage should not prevent a measurement.
        on_corrupt="quarantine",
        max_corrupt=_MOST_REGIONS,
    )
    prepared: PreparedJob = dataclasses.replace(plan_job(job, files), plan=plan)
    prepared.store(replaces=DescriptionVersions("", ""))
    begun = time.process_time()
    for shard in shards:
        convert_shard(prepared, shard)
    seconds = time.process_time() - begun
    return seconds, sum(part.end - part.begin for part in parts)
