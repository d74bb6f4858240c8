"""Conversion by count.

As planned by size. But first the inputs are cut into parts of 256 MiB; what is counted
of each, and where some records begin, is gathered for the plan.
"""

from __future__ import annotations

import collections
import functools
import pathlib
import random
import tempfile
from collections.abc import Iterable
from itertools import islice

from benchmarks.scale_files import RECORD_BYTES, make_inputs
from benchmarks.scale_size import finish
from benchmarks.scale_steps import Steps
from gristmill.dataset.base.columns import Gathered
from gristmill.transforms import ConversionJob
from gristmill.transforms.conversion.begin_job import plan_job
from gristmill.transforms.conversion.count_records import (
    count_tasks,
    stride_for,
    total_counts,
)
from gristmill.transforms.conversion.counted_parts import (
    CountedPart,
    CountTask,
)
from gristmill.transforms.conversion.job_inputs import list_inputs
from gristmill.transforms.planning.shard_plan import PlanOptions

_WINDOW = 1 << 16


def measure(shards: int) -> dict[str, float]:
    """Plans and commits so many shards."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "in").mkdir()
        records = make_inputs(f"{directory}/in", shards) // RECORD_BYTES
        job = ConversionJob(
            inputs=f"{directory}/in/*.tfrecord",
            output=f"{directory}/out",
            name="c4",
            plan=PlanOptions(kind="records_per_shard", value=-(-records // shards)),
        )
        gathered = _count(steps, job).rows[job.split]
        counts = steps.timed("plan", lambda: total_counts(job, gathered))
        prepared = steps.timed("plan", lambda: plan_job(job, *counts))
        finish(steps, prepared, shards)
    return steps.found


def _count(steps: Steps, job: ConversionJob) -> Gathered:
    files = steps.timed("list", lambda: list_inputs(job))
    tasks = count_tasks(job, files)
    stride = stride_for(job.plan.value or 1)
    gathered = Gathered()
    chance = random.Random(2)
    # Some at a time, as a runner takes them.
    while some := steps.timed("count_tasks", lambda: list(islice(tasks, _WINDOW))):
        steps.sent(some[-1])
        chance.shuffle(some)
        parts = [_counted(task, stride) for task in some]
        add_all = functools.partial(collections.deque, map(gathered.add, parts), 0)
        steps.timed("gather_counts", add_all)
        steps.sent(parts[0])
    found = steps.timed("gather_counts", lambda: steps.sent(gathered, gathers=True))
    steps.found["counts_bytes"] = steps.found["gathered_bytes"]
    return found


def _counted(task: CountTask, stride: int) -> CountedPart:
    first, end = (
        -(-edge // RECORD_BYTES) for edge in (task.begin_bytes, task.end_bytes)
    )
    offsets: Iterable[int] = range(
        first * RECORD_BYTES, end * RECORD_BYTES, stride * RECORD_BYTES
    )
    return CountedPart(
        task.split,
        task.number,
        None if task.begin_bytes else tuple(task.file),
        first * RECORD_BYTES,
        end * RECORD_BYTES,
        end - first,
        tuple(offsets),
    )
