"""Indexing files that exist.

The listing of the directory, the check of names and of some files, a task for each
file, the reports as they travel to the commit, the table of shards and `dataset.json`.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

from benchmarks.scale_files import link
from benchmarks.scale_steps import Steps, graph_bytes
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import INDEXED_JOB, ShardReport
from gristmill.transforms import IndexArrayRecords
from gristmill.transforms.indexing.index_job import IndexedShard, commit_index
from gristmill.transforms.indexing.plan_index import IndexTask, plan_index

_RECORD_BYTES = 2_200


def measure(shards: int) -> dict[str, float]:
    """Plans and commits the index of so many files."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as directory:
        make_files(directory, shards)
        graph = graph_bytes(IndexArrayRecords(files=(directory,)))
        steps.found["job_graph_bytes"] = graph
        tasks = steps.timed("plan", lambda: plan_index([directory]))
        if len(tasks) != shards:
            raise RuntimeError(f"planned {len(tasks)}, wanted {shards}")
        steps.sent(next(iter(tasks)))
        gathered = Gathered()
        for results in _results(tasks):
            steps.timed("gather", functools.partial(_add, gathered, results))
        gathered = steps.sent(gathered, gathers=True)
        steps.timed("commit", lambda: commit_index(gathered, inputs=[directory]))
        dataset_json = pathlib.Path(directory, layout.DATASET_JSON)
        steps.found["dataset_json_bytes"] = dataset_json.stat().st_size
    return steps.found


def make_files(directory: str, shards: int) -> None:
    """Makes files of some size without content, and an index of nothing for each."""
    names = [layout.shard_name("c4", "train", shard, shards) for shard in range(shards)]
    link((f"{directory}/{name}" for name in names), map(file_bytes, range(shards)))
    indexes = (f"{directory}/{layout.index_path(name)}" for name in names)
    link(indexes, (0 for _ in names))


def file_bytes(shard: int) -> int:
    """Returns the size of a file."""
    return (200 << 20) + shard % 64 * 65_521


def digest(shard: int) -> RecordsDigest:
    """Returns a digest that a shard could have."""
    records = 100_000 + shard * 104_729 % 20_000
    return RecordsDigest(
        records=records,
        raw_bytes=records * _RECORD_BYTES + shard % 997,
        low=hash((shard, 1)) & (1 << 64) - 1,
        high=hash((shard, 2)) & (1 << 64) - 1,
    )


def file_crc32c(shard: int) -> int:
    """Returns a checksum that a shard could have."""
    return shard * 2_654_435_761 & (1 << 32) - 1


def _add(gathered: Gathered, results: Iterable[IndexedShard]) -> None:
    for result in results:
        result.gather(gathered)


def _results(tasks: Iterable[IndexTask]) -> Iterator[list[IndexedShard]]:
    """Yields what the files would report, some at a time."""
    waiting = iter(tasks)
    while some := list(itertools.islice(waiting, 4096)):
        yield [_result(task) for task in some]


def _result(task: IndexTask) -> IndexedShard:
    read = digest(task.shard)
    report = ShardReport(
        path=task.file,
        shard_index=task.shard,
        job=INDEXED_JOB,
        file_bytes=task.file_bytes,
        file_crc32c=file_crc32c(task.shard),
        read=read,
        written=read,
    )
    return IndexedShard(task, report, "group_size:1,zstd:3,max_parallelism:1")
