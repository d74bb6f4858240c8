"""Appending 1 % to a dataset.

A conversion planned by size, which is not in these figures but for the last line, and
then the same steps for one more shard in a hundred, as the next edition of its split:
first the comparison of the inputs with those that are in the dataset. Commit and
opening read the tables of both.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile

from benchmarks.scale_files import make_inputs
from benchmarks.scale_size import finish
from benchmarks.scale_steps import Steps
from gristmill.transforms import ConversionJob
from gristmill.transforms.conversion.begin import plan_job
from gristmill.transforms.conversion.list_inputs import list_inputs
from gristmill.transforms.jobs.appended_job import open_to_append
from gristmill.transforms.planning.shard_plan import PlanOptions


def measure(shards: int) -> dict[str, float]:
    """Plans and commits so many shards, and then one more in a hundred."""
    with tempfile.TemporaryDirectory() as directory:
        before, steps = Steps(), Steps()
        _convert(before, directory, "in", shards)
        more = max(1, shards // 100)
        _convert(steps, directory, "more", more)
    seconds = [
        sum(value for name, value in each.found.items() if name.endswith("_seconds"))
        for each in (steps, before)
    ]
    return steps.found | {"percent_of_conversion": 100 * seconds[0] / seconds[1]}


def _convert(steps: Steps, directory: str, inputs: str, shards: int) -> None:
    pathlib.Path(directory, inputs).mkdir()
    total_bytes = make_inputs(f"{directory}/{inputs}", shards)
    job = ConversionJob(
        inputs=f"{directory}/{inputs}/*.tfrecord",
        output=f"{directory}/out",
        name="c4",
        plan=PlanOptions(kind="shard_bytes", value=-(-total_bytes // shards)),
    )
    if inputs == "more":
        job = steps.timed("compare_inputs", lambda: _appended(job))
    files = steps.timed("list", lambda: list_inputs(job))
    prepared = steps.timed("plan", lambda: plan_job(job, files))
    finish(steps, prepared, shards)


def _appended(job: ConversionJob) -> ConversionJob:
    open_to_append(job.output, job.split)
    return dataclasses.replace(job, appends=True)
