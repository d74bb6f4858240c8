"""Replacing a split.

A conversion planned by size, which is not in these figures but for the last line, and
then another one of other inputs into the same split: the next edition, its commit, and
the deletion of the files of the edition before, which is a step of its own.
"""

from __future__ import annotations

import pathlib
import tempfile

from benchmarks.scale_files import made_results, make_inputs, make_shards
from benchmarks.scale_steps import Steps
from gristmill.dataset.arrayrecord.compression import WriterOptions
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.commit.garbage import delete_garbage
from gristmill.transforms import ConversionJob
from gristmill.transforms.conversion.begin import plan_job, take_output
from gristmill.transforms.conversion.commit_shards import CommitOptions, commit_shards
from gristmill.transforms.conversion.list_inputs import list_inputs
from gristmill.transforms.planning.shard_plan import PlanOptions


def measure(shards: int) -> dict[str, float]:
    """Plans and commits so many shards, and then as many that replace them."""
    with tempfile.TemporaryDirectory() as directory:
        first, steps = Steps(), Steps()
        _convert(first, directory, "first", shards)
        _convert(steps, directory, "second", shards)
    percent = 100 * steps.found["commit_seconds"] / first.found["commit_seconds"]
    return steps.found | {"percent_of_first_commit": percent}


def _convert(steps: Steps, directory: str, inputs: str, shards: int) -> None:
    pathlib.Path(directory, inputs).mkdir()
    total_bytes = make_inputs(f"{directory}/{inputs}", shards)
    overwrite = inputs == "second"
    job = ConversionJob(
        inputs=f"{directory}/{inputs}/*.tfrecord",
        output=f"{directory}/out",
        name="c4",
        # Files of no content are larger than the disk: with other options than before,
        # nothing is known of the space that the new split takes.
        writer=WriterOptions(group_size=1 + overwrite),
        plan=PlanOptions(kind="shard_bytes", value=-(-total_bytes // shards)),
    )
    files = steps.timed("list", lambda: list_inputs(job))
    planned = steps.timed("plan", lambda: plan_job(job, files))
    taken = steps.timed("begin", lambda: take_output(planned, overwrite=overwrite))
    gathered = Gathered()
    for results in made_results(taken.prepared):
        for result in results:
            result.gather(gathered)
    found = steps.sent(gathered, gathers=True)
    make_shards(taken.prepared)
    done = steps.timed(
        "commit", lambda: commit_shards([job], found, CommitOptions(delete=False))
    )
    steps.timed("delete", lambda: delete_garbage(job.output, done.manifest, job.split))
