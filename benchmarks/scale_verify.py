"""Verification.

The manifest, the table of shards and the listings, a task for each shard, and the
results on their way to the end: of each hundredth shard, two findings. `quick` is
`--quick`, which compares the listings with the table and has no tasks.
"""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
from collections.abc import Iterable, Iterator

from benchmarks.scale_index import digest, file_bytes, file_crc32c, make_files
from benchmarks.scale_steps import Steps, graph_bytes
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.findings import Finding
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_collector import ShardCollector
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.transforms import VerifyDataset
from gristmill.transforms.checking.verification import (
    VerifyJob,
    VerifyTask,
    VerifyTasks,
    plan_verify,
)
from gristmill.transforms.checking.verify_shard import ShardCheck


def measure(shards: int) -> dict[str, float]:
    """Plans and sums up the verification of so many shards."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as directory:
        # In a process of its own: its memory is not part of what is measured.
        maker = multiprocessing.get_context("fork").Process(
            target=make_dataset, args=(directory, shards)
        )
        maker.start()
        maker.join()
        steps.found["job_graph_bytes"] = graph_bytes(VerifyDataset(directory))
        plan = steps.timed("plan", lambda: plan_verify(directory, shards_too=False))
        if len(plan.tasks) != shards or plan.findings:
            raise RuntimeError(f"{len(plan.tasks)} tasks, {plan.findings.first}")
        steps.sent(next(iter(plan.tasks)))
        gathered = steps.sent(Gathered.of([plan.known]), gathers=True)

        def gather(tasks: VerifyTasks) -> None:
            for check in _results(tasks):
                check.gather(gathered)

        steps.timed("gather", functools.partial(gather, plan.tasks))
        job = VerifyJob(directory)
        result = job.commit(steps.sent(gathered, gathers=True))
        steps.found["findings"] = len(result.findings) + result.more_findings
        del plan
        steps.timed("quick", lambda: plan_verify(directory))
    return steps.found


def make_dataset(directory: str, shards: int) -> None:
    """Makes a committed dataset of a split `train`, its files of nothing."""
    make_files(directory, shards)
    collector = ShardCollector("made up")
    for shard in range(shards):
        collector.add(
            ShardReport(
                path=layout.shard_name("c4", "train", shard, shards),
                shard_index=shard,
                job="made up",
                file_bytes=file_bytes(shard),
                file_crc32c=file_crc32c(shard),
                read=digest(shard),
                written=digest(shard),
            )
        )
    split = write_table(
        directory,
        "c4",
        "train",
        collector.table(),
        writer_options="group_size:1",
        source={"job": "made up"},
    )
    commit_dataset(directory, "c4", {"train": split}, based_on={"train": 0})


def _results(tasks: Iterable[VerifyTask]) -> Iterator[ShardCheck]:
    """Yields what the shards would give, one in a hundred damaged."""
    for number, task in enumerate(tasks):
        findings: tuple[Finding, ...] = ()
        if number % 100 == 7:
            whats = ("record 7 is not the one that was written", "record 8 is not")
            findings = tuple(Finding(task.path, what, "1", "2") for what in whats)
        yield ShardCheck(
            task.path,
            task.digest.records,
            task.digest.raw_bytes,
            findings,
            task.file_bytes,
        )
