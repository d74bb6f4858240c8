"""What planning and committing cost from a thousand to a million shards.

    python -m benchmarks.plan_scale --markdown docs/performance_scale.md

No data is read. The listing is invented (paths, sizes, generations), and so are the
reports of shards, which say what the plan expects. The shards that the commit lists are
files of the right sizes without content. All else is the real code:
the plan, the description of the job and the list of inputs beside the output, a task
for each shard, the reports as they travel to the commit, its proof that all ranges
meet, the table of shards and `dataset.json`, and opening the result for reading. Each
number of shards has a process of its own; its largest memory is given above that of
the imports alone.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_SHARD_BYTES = 256 << 20
_RECORD_BYTES = 2_216  # With the 16 bytes of its frame.
_FILE_BYTES = 1 << 30  # Four shards an input file, with cuts that do not meet its ends.


def measure(shards: int) -> dict[str, float]:
    """Plans and commits so many shards, in this process."""
    import apache_beam as beam

    from gristmill import loader
    from gristmill.transforms import ConversionJob, ConvertTFRecords
    from gristmill.transforms.conversion.begin_job import plan_job, take_output
    from gristmill.transforms.conversion.commit_shards import commit_shards
    from gristmill.transforms.conversion.shard_tasks import GatheredResults, shard_tasks

    _ = loader.open  # Imported now, before memory is counted.
    bare = _peak_bytes()
    found: dict[str, float] = {"shards": shards}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        found[f"{name}_seconds"] = time.perf_counter() - begin
        found[f"{name}_peak_bytes"] = _peak_bytes() - bare
        return result

    with tempfile.TemporaryDirectory() as directory:
        output = f"{directory}/out"
        job = ConversionJob(
            inputs=("gs://bucket/data/*.tfrecord",), output=output, name="c4"
        )
        pipeline = beam.Pipeline()
        _ = pipeline | ConvertTFRecords(jobs=(job,))
        graph = pipeline.to_runner_api().SerializeToString()
        found["job_graph_bytes"] = len(graph)

        files = timed("listing", lambda: _listing(shards))
        prepared = timed("plan", lambda: plan_job(job, files))
        if prepared.plan.shards != shards:
            raise RuntimeError(f"planned {prepared.plan.shards}, wanted {shards}")
        timed("describe", lambda: take_output(prepared))
        found["task_bytes"] = len(pickle.dumps(next(shard_tasks(prepared))))

        def gather() -> GatheredResults:
            gathered = GatheredResults()
            for result in _results(prepared):
                gathered.add(result)
            return gathered

        gathered = timed("gather", gather)
        found["gathered_bytes"] = len(pickle.dumps(gathered))
        _make_files(output, gathered.splits[job.split].reports.reports().table)
        timed("commit", lambda: commit_shards([job], gathered))
        found["metadata_bytes"] = sum(
            path.stat().st_size
            for suffix in ("json", "npz")
            for path in pathlib.Path(output).rglob(f"*.{suffix}")
        )
        found["dataset_json_bytes"] = (
            pathlib.Path(output, "dataset.json").stat().st_size
        )
        dataset = timed("open", lambda: loader.open(output))
        found["records"] = len(dataset)
    return found


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _listing(shards: int) -> Any:
    from gristmill.transforms.sources.input_files import InputFiles

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
    from gristmill.dataset.metadata import layout

    directory = pathlib.Path(output)
    for path, size in zip(table.paths, table.file_bytes.tolist(), strict=True):
        with (directory / path).open("wb") as file:
            file.truncate(size)
        (directory / layout.index_path(path)).touch()


def _results(prepared: Any) -> Iterator[Any]:
    """Yields what the shards of a plan would report, a shuffle of them."""
    from gristmill.dataset.digest import RecordsDigest
    from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
    from gristmill.transforms.conversion.shard_tasks import ShardResult, ShardTask

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


_ROWS = (
    ("job graph", "job_graph_bytes", 1e-3, "KB"),
    ("a task", "task_bytes", 1, "B"),
    ("plan", "plan_seconds", 1, "s"),
    ("describe the job beside the output", "describe_seconds", 1, "s"),
    ("collect the reports", "gather_seconds", 1, "s"),
    ("the reports on their way to the commit", "gathered_bytes", 1e-6, "MB"),
    ("commit", "commit_seconds", 1, "s"),
    ("most memory, planning", "describe_peak_bytes", 1e-6, "MB"),
    ("most memory, until the commit is done", "commit_peak_bytes", 1e-6, "MB"),
    ("metadata of the dataset", "metadata_bytes", 1e-6, "MB"),
    ("`dataset.json`", "dataset_json_bytes", 1e-3, "KB"),
    ("open for reading", "open_seconds", 1, "s"),
)


def markdown(runs: list[dict[str, float]]) -> str:
    """Returns the table, with the exponent of growth over the last factor of ten."""
    header = ["", *(f"{run['shards']:,.0f} shards" for run in runs), "grows as n^"]
    lines = [_line(header), _line(["---", *["---:"] * (len(runs) + 1)])]
    for name, key, scale, unit in _ROWS:
        values = [run[key] * scale for run in runs]
        exponent = ""
        if len(runs) > 1 and min(values[-2:]) > 0:
            steps = math.log(runs[-1]["shards"] / runs[-2]["shards"])
            exponent = f"{math.log(values[-1] / values[-2]) / steps:.2f}"
        lines.append(_line([name, *(f"{v:,.3g} {unit}" for v in values), exponent]))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measures, prints the table, and writes it where it is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    counts = [10**3, 10**4, 10**5, 10**6]
    parser.add_argument("--shards", type=int, nargs="+", default=counts)
    parser.add_argument("--markdown", type=pathlib.Path, help="where the table goes")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one)))
        return
    runs = []
    for shards in options.shards:
        command = [sys.executable, "-m", "benchmarks.plan_scale", "--one", str(shards)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(markdown(runs), flush=True)
    if options.markdown is not None:
        title = "# From a thousand to a million shards\n\n"
        note = __doc__.split("\n\n", 2)[2]
        text = f"{title}{note}\n{markdown(runs)}"
        options.markdown.write_text(text, encoding="utf-8")
        options.markdown.with_suffix(".json").write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
