"""Records of a PCollection into shards, by `WriteArrayRecords`.

The counts of all groups as they are gathered, the plan, the output, a task for each
group, the rows that come from the shards, the commit, and opening the result for
reading. Some groups are cut into two shards, as they are in a real write.
"""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from benchmarks.scale_steps import Steps, graph_bytes
from gristmill import loader
from gristmill.dataset.arrayrecord.compression import WriterOptions
from gristmill.dataset.base.digest import DIGEST_ROW
from gristmill.dataset.metadata import layout
from gristmill.transforms import WriteArrayRecords
from gristmill.transforms.beam.write_arrayrecords import _GatherFn
from gristmill.transforms.planning.write_plan import (
    COUNT_ROW,
    PlannedWrite,
    WriteJob,
    WritePlan,
)
from gristmill.transforms.writing.write_group import encode_task
from gristmill.transforms.writing.write_split import (
    SHARD_ROW,
    begin_write,
    commit_write,
)

_SHARD_BYTES = 256 << 20
_RECORD_BYTES = 2_200
_BUNDLE_ROWS = 1 << 12
_ = loader.open  # Imported now, before memory is counted.


def measure(shards: int) -> dict[str, float]:
    """Plans and commits so many shards."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as directory:
        output = f"{directory}/out"
        transform = beam.Create([b""]) | WriteArrayRecords(output, name="c4")
        steps.found["job_graph_bytes"] = graph_bytes(transform)
        job = WriteJob(
            output=output,
            name="c4",
            split="train",
            num_shards=None,
            shard_bytes=_SHARD_BYTES,
            keyed=False,
            writer=WriterOptions(),
        )
        counts = _counts(shards)
        gathered = steps.timed("gather_counts", lambda: _gathered(counts))
        gathered = steps.sent(gathered, gathers=True)
        plan = steps.timed(
            "begin", lambda: begin_write(job, gathered, groups=len(counts))
        )
        if plan.write.shards != shards:
            raise RuntimeError(f"planned {plan.write.shards}, wanted {shards}")
        steps.timed("tasks", lambda: _send_tasks(plan, steps))
        rows = _rows(plan, steps)
        _make_files(plan.write, rows)
        gathered = steps.timed("gather_reports", lambda: _gathered(rows))
        gathered = steps.sent((plan.write.reference, gathered), gathers=True)[1]
        steps.timed("commit", lambda: commit_write(plan.write, gathered))
        dataset_json = pathlib.Path(output, "dataset.json")
        steps.found["dataset_json_bytes"] = dataset_json.stat().st_size
        steps.found["records"] = len(steps.timed("open", lambda: loader.open(output)))
    return steps.found


def _counts(shards: int) -> npt.NDArray[Any]:
    """Returns the counts of each group, a shuffle: one in ten is cut in two."""
    cut = shards // 11
    groups = shards - cut
    chance = np.random.default_rng(0)
    counts = np.zeros(groups, COUNT_ROW)
    counts["group"] = chance.permutation(groups)
    digests = counts["digest"]
    records = _SHARD_BYTES * 9 // 10 // _RECORD_BYTES
    digests["records"] = records - chance.integers(0, records // 10, groups)
    digests["records"][:cut] += records // 2
    digests["raw_bytes"] = digests["records"] * _RECORD_BYTES
    for lane in ("low", "high"):
        digests[lane] = chance.integers(0, 1 << 63, groups, np.uint64)
    return counts


def _gathered(rows: npt.NDArray[Any]) -> bytes:
    """Gathers rows as a runner does, from many bundles."""
    gather = _GatherFn()  # type: ignore[no-untyped-call]
    parts = []
    size, data = rows.dtype.itemsize, rows.tobytes()
    for begin in range(0, len(data), _BUNDLE_ROWS * size):
        part = gather.create_accumulator()
        for at in range(begin, min(begin + _BUNDLE_ROWS * size, len(data)), size):
            part = gather.add_input(part, data[at : at + size])
        parts.append(part)
    return gather.extract_output(gather.merge_accumulators(parts))


def _send_tasks(plan: WritePlan, steps: Steps) -> None:
    """Makes the element of every group; one goes through Beam's coder."""
    element = max(((g, encode_task(task)) for g, task in plan.tasks()), key=len)
    steps.sent(element)


def _rows(plan: WritePlan, steps: Steps) -> npt.NDArray[Any]:
    """Returns the reports of the shards of a plan, a shuffle of them."""
    groups = np.repeat(np.arange(len(plan.parts)), plan.parts)
    rows = np.zeros(len(groups), SHARD_ROW)
    rows["shard"] = np.arange(len(groups))
    rows["digest"] = plan.digests[groups]
    # Of two shards of a group, the first has the half of the records.
    second = np.flatnonzero(groups[1:] == groups[:-1]) + 1
    for name in DIGEST_ROW.names or ():
        column = rows["digest"][name]
        half = column[second] // 2
        column[second - 1] -= half
        column[second] = half
    rows["file_bytes"] = rows["digest"]["records"] * 1_000
    rows["file_crc32c"] = np.arange(len(groups)) * 2_654_435_761 % (1 << 32)
    steps.sent((plan.write.reference, rows[-1:].tobytes()))
    return np.random.default_rng(1).permutation(rows)


def _make_files(write: PlannedWrite, rows: npt.NDArray[Any]) -> None:
    """Makes files of the sizes of all shards, and an index of nothing for each."""
    directory = pathlib.Path(write.job.output)
    for shard, size in zip(
        rows["shard"].tolist(), rows["file_bytes"].tolist(), strict=True
    ):
        path = write.shard_path(shard)
        with (directory / path).open("wb") as file:
            file.truncate(size)
        (directory / layout.index_path(path)).touch()
