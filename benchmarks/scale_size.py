"""Conversion planned by size.

The plan, the description of the job and the list of inputs beside the output, a task
for each shard, the reports as they travel to the commit, its proof that all ranges
meet, the table of shards and `dataset.json`, and opening the result for reading.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.scale_steps import Steps, graph_bytes
from gristmill import loader
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.transforms import ConversionJob, ConvertTFRecords
from gristmill.transforms.conversion.begin_job import plan_job, take_output
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.shard_tasks import (
    GatheredResults,
    ShardResult,
    ShardTask,
    shard_tasks,
)
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.input_files import InputFiles

_SHARD_BYTES = 256 << 20
_RECORD_BYTES = 2_216  # With the 16 bytes of its frame.
_FILE_BYTES = 1 << 30  # Four shards an input file, with cuts that do not meet its ends.
_ = loader.open  # Imported now, before memory is counted.


def measure(shards: int) -> dict[str, float]:
    """Plans and commits so many shards."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as directory:
        output = f"{directory}/out"
        job = ConversionJob(
            inputs=("gs://bucket/data/*.tfrecord",), output=output, name="c4"
        )
        steps.found["job_graph_bytes"] = graph_bytes(ConvertTFRecords(jobs=(job,)))
        files = _listing(shards)
        prepared = steps.timed("plan", lambda: plan_job(job, files))
        if prepared.plan.shards != shards:
            raise RuntimeError(f"planned {prepared.plan.shards}, wanted {shards}")
        steps.timed("describe", lambda: take_output(prepared))
        steps.sent(next(shard_tasks(prepared)))

        def gather() -> GatheredResults:
            gathered = GatheredResults()
            for result in _results(prepared):
                gathered.add(result)
            return gathered

        gathered = steps.sent(steps.timed("gather", gather), gathers=True)
        _make_files(output, gathered.splits[job.split].reports.reports().table)
        steps.timed("commit", lambda: commit_shards([job], gathered))
        steps.found["metadata_bytes"] = sum(
            path.stat().st_size
            for suffix in ("json", "npz")
            for path in pathlib.Path(output).rglob(f"*.{suffix}")
        )
        dataset_json = pathlib.Path(output, "dataset.json")
        steps.found["dataset_json_bytes"] = dataset_json.stat().st_size
        steps.found["records"] = len(steps.timed("open", lambda: loader.open(output)))
    return steps.found


def _listing(shards: int) -> InputFiles:
    total = shards * _SHARD_BYTES
    count = -(-total // _FILE_BYTES)
    # Sizes that differ, with the same sum.
    sizes = np.full(count, _FILE_BYTES, np.int64)
    sizes[-1] = total - _FILE_BYTES * (count - 1)
    moved = np.random.default_rng(0).integers(0, _SHARD_BYTES, count // 2)
    sizes[: 2 * (count // 2) : 2] -= moved
    sizes[1 : 2 * (count // 2) : 2] += moved
    return InputFiles(
        paths=tuple(f"gs://bucket/data/{file:07d}.tfrecord" for file in range(count)),
        sizes=sizes,
        versions=tuple(f"17{file:014d}" for file in range(count)),
        compressions=np.zeros(count, np.uint8),
        noted_ns=np.zeros(count, np.int64),
    )


def _make_files(output: str, table: Any) -> None:
    """Makes files of the sizes of all shards, and an index of nothing for each."""
    directory = pathlib.Path(output)
    for path, size in zip(table.paths, table.file_bytes.tolist(), strict=True):
        with (directory / path).open("wb") as file:
            file.truncate(size)
        (directory / layout.index_path(path)).touch()


def _results(prepared: PreparedJob) -> Iterator[ShardResult]:
    """Yields what the shards of a plan would report, a shuffle of them."""
    job = prepared.job
    for shard in np.random.default_rng(1).permutation(prepared.plan.shards).tolist():
        spans = tuple(
            SourceSpan(
                file_index=part.file_index,
                begin_bytes=part.begin_bytes,
                end_bytes=part.end_bytes,
                start_bytes=part.begin_bytes,
                stop_bytes=part.end_bytes,
                records=(part.end_bytes - part.begin_bytes) // _RECORD_BYTES,
                whole=part.end_bytes == int(prepared.files.sizes[part.file_index]),
            )
            for part in prepared.plan.ranges(shard)
        )
        records = sum(span.records for span in spans)
        digest = RecordsDigest(
            records=records,
            raw_bytes=records * _RECORD_BYTES,
            low=hash((shard, 1)) & (1 << 64) - 1,
            high=hash((shard, 2)) & (1 << 64) - 1,
        )
        report = ShardReport(
            path=prepared.shard_path(shard),
            shard_index=shard,
            job=prepared.fingerprint,
            file_bytes=records * 1_000 + shard % 65_521,
            file_crc32c=(shard * 2_654_435_761) & (1 << 32) - 1,
            read=digest,
            written=digest,
            spans=spans,
        )
        task = ShardTask(job.output, job.name, job.split, prepared.fingerprint, shard)
        yield ShardResult(task, report)
