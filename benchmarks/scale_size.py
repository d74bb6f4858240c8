"""Conversion planned by size.

The listing of the inputs, each of some four shards, with a look into every one; the
plan; the description of the job and the list of inputs beside the output; a task for
each shard; the job as a worker loads it; the reports as they travel to the commit; its
proof that all ranges meet, the table of shards and `dataset.json`; and opening the
result for reading. The report of a shard is gathered where the shard was made.
"""

from __future__ import annotations

import collections
import functools
import pathlib
import tempfile
from collections.abc import Iterable

from benchmarks.scale_files import made_results, make_inputs, make_shards
from benchmarks.scale_steps import Steps, graph_bytes
from gristmill import loader
from gristmill.dataset.base.columns import Gatherable, Gathered
from gristmill.transforms import ConversionJob, ConvertFiles
from gristmill.transforms.conversion.begin import plan_job, take_output
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.list_inputs import list_inputs
from gristmill.transforms.conversion.make_shards import shard_tasks
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.planning.shard_plan import PlanOptions


def measure(shards: int) -> dict[str, float]:
    """Plans and commits so many shards."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "in").mkdir()
        total_bytes = make_inputs(f"{directory}/in", shards)
        job = ConversionJob(
            inputs=f"{directory}/in/*.tfrecord",
            output=f"{directory}/out",
            name="c4",
            plan=PlanOptions(kind="shard_bytes", value=-(-total_bytes // shards)),
        )
        files = steps.timed("list", lambda: list_inputs(job))
        prepared = steps.timed("plan", lambda: plan_job(job, files))
        finish(steps, prepared, shards)
    return steps.found


def _begun(steps: Steps, planned: PreparedJob) -> PreparedJob:
    return steps.timed("begin", lambda: take_output(planned)).prepared


def _gather(results: Iterable[Gatherable], gathered: Gathered) -> None:
    for result in results:
        result.gather(gathered)


def finish(steps: Steps, prepared: PreparedJob, shards: int) -> None:
    """Begins a planned job, and commits it."""
    job = prepared.job
    # A number of records in each makes some more or fewer.
    if abs(prepared.plan.shards - shards) > shards // 1000:
        raise RuntimeError(f"planned {prepared.plan.shards}, wanted {shards}")
    steps.found["job_graph_bytes"] = graph_bytes(ConvertFiles(jobs=(job,)))
    prepared = _begun(steps, prepared)
    # One after the other, as a runner takes them.
    last = functools.partial(collections.deque, shard_tasks(prepared), 1)
    task = steps.sent(steps.timed("tasks", last)[0])
    steps.timed("load_in_a_worker", lambda: task.prepared)
    gathered = Gathered()
    for results in made_results(prepared):
        steps.timed("gather", functools.partial(_gather, results, gathered))
    found = steps.timed("gather", lambda: steps.sent(gathered, gathers=True))
    make_shards(prepared)
    steps.timed("commit", lambda: commit_shards([job], found))
    steps.found["metadata_bytes"] = sum(
        path.stat().st_size
        for folder in ("", "index")
        for path in pathlib.Path(job.output, folder).glob("*.*")
        if path.suffix in (".json", ".npz")
    )
    dataset_json = pathlib.Path(job.output, "dataset.json")
    steps.found["dataset_json_bytes"] = dataset_json.stat().st_size
    dataset = steps.timed("open", lambda: loader.open(job.output))
    steps.found["records"] = len(dataset)
