"""The cost of planning and committing, from a thousand to four million shards.

    python -m benchmarks.scale [PATH...] [--shards 1000 10000]

No data is read. What workers report of their shards is made up; files that have to be
there have the right sizes, and no content. All else is the real code, in one process.
What a runner would carry from one stage to the next passes through Beam's coder.
"""

import argparse
import collections
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import pathlib
import resource
import sys
import tempfile
import time

import apache_beam as beam
import numpy as np

from benchmarks import report
from benchmarks.contest import describe_environment, say
from gristmill import loader
from gristmill.dataset import WriterOptions, encode_frame
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.findings import Finding
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import (
    INDEXED_JOB,
    ShardReport,
    SourceSpan,
)
from gristmill.transforms import ConversionJob
from gristmill.transforms.beam.read_ranges import Listing, list_looked, list_looks
from gristmill.transforms.beam.write_arrayrecords import _GatherFn
from gristmill.transforms.checking.verification import VerifyJob, plan_verify
from gristmill.transforms.checking.verify_shard import ShardCheck
from gristmill.transforms.conversion.begin import list_inputs, plan_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    ShardTask,
    shard_tasks,
)
from gristmill.transforms.conversion.take_output import take_output
from gristmill.transforms.indexing.index_job import (
    IndexedShard,
    IndexJob,
    plan_index,
)
from gristmill.transforms.planning.shard_plan import PlanOptions
from gristmill.transforms.sources.find_inputs import look_at_part
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.writing.write_group import encode_task
from gristmill.transforms.writing.write_split import (
    COUNT_ROW,
    GroupResult,
    WriteJob,
    begin_write,
    commit_write,
)

_KINDS = 64  # Of sizes. Files are links to so many, or a few more, of each.
_MOST_LINKS = 60_000  # Of one file, in ext4.
_SOME = 4096
_RECORD_BYTES = 2_216  # With the 16 bytes of its frame.


class Steps:
    """CPU seconds of each step, and the bytes of a runner's elements.

    Attributes:
        found: `NAME_seconds`; `element_bytes` of the largest element about one shard or
            file, `gathered_bytes` of the largest one about many.
    """

    def __init__(self):
        self.found = collections.Counter(element_bytes=0)
        self._coder = beam.coders.registry.get_coder(object)

    def timed(self, name, work, *arguments):
        """Returns the result of `work`; adds its CPU time to that of the step."""
        begin = time.process_time()
        result = work(*arguments)
        seconds = time.process_time() - begin
        self.found[f"{name}_seconds"] += seconds
        return result

    def sent(self, element, key="element_bytes"):
        """Passes an element through Beam's coder, as between two stages."""
        encoded = self._coder.encode(element)
        self.found[key] = max(self.found[key], len(encoded))
        return self._coder.decode(encoded)

    def gathered(self, results):
        """Gathers results, made up some at a time, and sends them."""
        gathered, waiting = Gathered(), iter(results)
        while some := list(itertools.islice(waiting, _SOME)):
            self.timed("gather", _gather, some, gathered)
        return self.timed("gather", self.sent, gathered, "gathered_bytes")


def _gather(results, gathered):
    for result in results:
        result.gather(gathered)


def _link(names, sizes, head=b""):
    """Makes files of no content but a head: links, where sizes are the same."""
    known = {}
    for name, size in zip(names, sizes, strict=True):
        first, links = known.get(size, ("", _MOST_LINKS))
        if links < _MOST_LINKS:
            os.link(first, name)
            known[size] = first, links + 1
            continue
        pathlib.Path(name).parent.mkdir(exist_ok=True)
        with open(name, "wb") as file:
            file.write(head)
            file.truncate(size)
        known[size] = name, 1


def _file_bytes(shard):
    return 120_000_000 + shard % _KINDS * 65_521


def _make_shards(folder, paths):
    """Makes the files of all shards, and an index of nothing for each."""
    _link((f"{folder}/{path}" for path in paths), map(_file_bytes, range(len(paths))))
    indexes = (f"{folder}/{layout.index_path(path)}" for path in paths)
    _link(indexes, (0 for _ in paths))


def _digest(shard, records):
    low, high = (hash((shard, lane)) & (1 << 64) - 1 for lane in (1, 2))
    raw_bytes = records * (_RECORD_BYTES - 16)
    return RecordsDigest(records=records, raw_bytes=raw_bytes, low=low, high=high)


def _report(path, shard, job, digest, **more):
    """Returns a report of a shard that a worker could give."""
    return ShardReport(
        path=path,
        shard_index=shard,
        job=job,
        file_bytes=_file_bytes(shard),
        file_crc32c=shard * 2_654_435_761 & (1 << 32) - 1,
        read=digest,
        written=digest,
        **more,
    )


def _expect(found, wanted):
    # A number of records in each file makes some shards more or fewer.
    if abs(found - wanted) > wanted // 1000:
        raise RuntimeError(f"planned {found}, wanted {wanted}")


def _alone(function, *arguments):
    """Calls a function in a process of its own, for the sake of its memory."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *arguments).result()


# --- Conversion, and an append to it.


def _make_inputs(directory, shards):
    """Makes input files of some four shards each, and returns all their bytes."""
    pathlib.Path(directory).mkdir()
    kinds = np.arange(max(1, -(-shards // 4))) % _KINDS
    chance = np.random.default_rng(0)
    records = (1 << 30) // _RECORD_BYTES + chance.integers(-50_000, 50_000, _KINDS)
    sizes = (records * _RECORD_BYTES)[kinds]
    names = (f"{directory}/c4-{file:07d}.tfrecord" for file in range(len(kinds)))
    _link(names, sizes.tolist(), encode_frame(bytes(_RECORD_BYTES - 16)))
    return int(sizes.sum())


def _frame_after(position):
    return -(-position // _RECORD_BYTES) * _RECORD_BYTES


def _results(prepared):
    """Yields what the shards of a plan would report, shuffled."""
    for shard in np.random.default_rng(1).permutation(prepared.plan.shards).tolist():
        spans = []
        for part in prepared.plan.ranges(shard):
            start = _frame_after(part.begin_bytes)
            size = int(prepared.files.sizes[part.file_index])
            stop = min(_frame_after(part.end_bytes), size)
            spans.append(
                SourceSpan(
                    file_index=part.file_index,
                    begin_bytes=part.begin_bytes,
                    end_bytes=part.end_bytes,
                    start_bytes=start,
                    stop_bytes=stop,
                    records=(stop - start) // _RECORD_BYTES,
                    whole=False,
                )
            )
        made = _report(
            prepared.shard_path(shard),
            shard,
            prepared.write.id,
            _digest(shard, sum(span.records for span in spans)),
            spans=tuple(spans),
        )
        yield ShardResult(ShardTask(prepared.write, shard, prepared.fresh), made)


def _convert(steps, folder, inputs, shards):
    total_bytes = _make_inputs(f"{folder}/{inputs}", shards)
    job = ConversionJob(
        inputs=f"{folder}/{inputs}/*.tfrecord",
        output=f"{folder}/out",
        name="c4",
        plan=PlanOptions(kind="shard_bytes", value=-(-total_bytes // shards)),
        appends=inputs == "more",
    )
    files = steps.timed("list", list_inputs, job)
    planned = steps.timed("plan", plan_job, job, files)
    _expect(planned.plan.shards, shards)
    prepared = steps.timed("begin", take_output, planned).prepared
    # One after the other, as a runner takes them.
    (last,) = steps.timed("tasks", collections.deque, shard_tasks(prepared), 1)
    task = steps.sent(last)
    steps.timed("load_in_a_worker", lambda: task.prepared)
    found = steps.gathered(_results(prepared))
    paths = [prepared.shard_path(shard) for shard in range(prepared.plan.shards)]
    _make_shards(job.output, paths)
    steps.timed("commit", commit_shards, [job], found)
    steps.timed("open", loader.open, job.output)


def measure_convert(steps, folder, shards):
    """Plans and commits a conversion by size, and opens its result."""
    _convert(steps, folder, "in", shards)


def measure_append(steps, folder, shards):
    """Appends one shard in a hundred to a conversion, which does not count."""
    _alone(_convert, Steps(), folder, "in", shards)
    _convert(steps, folder, "more", max(1, shards // 100))


def measure_read(steps, folder, shards):
    """Lists and cuts what `ReadRecords` reads: as many small files as shards.

    The looks into the files are those of many workers, and do not count.
    """
    names = (f"{folder}/in/c4-{file:07d}.tfrecord" for file in range(shards))
    pathlib.Path(f"{folder}/in").mkdir()
    _link(names, (1 << 20 for _ in range(shards)), encode_frame(bytes(100)))
    inputs, how = (f"{folder}/in/*",), Listing(None, RecordOptions(), False, 1 << 30)
    looks = steps.timed("list", lambda: list(list_looks(inputs, how)))
    steps.sent(looks[0], "gathered_bytes")
    gathered = steps.gathered(map(look_at_part, looks))
    parts = steps.timed(
        "plan", lambda: sum(1 for _ in list_looked(gathered, inputs, how))
    )
    del steps.found["gather_seconds"]
    _expect(parts, shards)


# --- Records of a PCollection into shards.


def measure_write(steps, folder, shards):
    """Plans and commits `WriteArrayRecords`: one group in ten is cut in two."""
    size = 256 << 20
    job = WriteJob(
        output=f"{folder}/out",
        name="c4",
        split="train",
        num_shards=None,
        shard_bytes=size,
        keyed=False,
        writer=WriterOptions(),
    )
    cut = shards // 11
    chance = np.random.default_rng(0)
    counts = np.zeros(shards - cut, COUNT_ROW)
    counts["group"] = chance.permutation(len(counts))
    records = size * 9 // 10 // _RECORD_BYTES
    digests = counts["digest"]
    digests["records"] = records - chance.integers(0, records // 10, len(counts))
    digests["records"][:cut] += records // 2
    digests["raw_bytes"] = digests["records"] * _RECORD_BYTES
    for lane in ("low", "high"):
        digests[lane] = chance.integers(0, 1 << 63, len(counts), np.uint64)
    gathered = steps.timed("gather", _gathered, counts)
    gathered = steps.sent(gathered, "gathered_bytes")
    plan = steps.timed("begin", lambda: begin_write(job, gathered, groups=len(counts)))
    _expect(plan.write.shards, shards)
    groups = ((group, encode_task(task)) for group, task in plan.tasks())
    steps.sent(steps.timed("tasks", lambda: max(groups, key=lambda each: len(each[1]))))
    paths = [plan.write.shard_path(shard) for shard in range(shards)]
    _make_shards(job.output, paths)
    found = steps.gathered(_written(plan))
    steps.timed("commit", commit_write, found)
    steps.timed("open", loader.open, job.output)


def _gathered(rows):
    """Gathers rows as a runner does, from many bundles."""
    gather, parts = _GatherFn(), []
    waiting = (row.tobytes() for row in rows)
    while some := list(itertools.islice(waiting, _SOME)):
        parts.append(gather.add_inputs(gather.create_accumulator(), some))
    return gather.extract_output(gather.merge_accumulators(parts))


def _written(plan):
    """Yields the results that the groups of a plan would give."""
    first = 0
    for group, parts in enumerate(plan.parts.tolist()):
        # Of two shards of a group, one has all records.
        digests = [RecordsDigest.unpack(plan.digests[group].tobytes())]
        digests += [RecordsDigest()] * (parts - 1)
        reports = [
            _report(plan.write.shard_path(shard), shard, plan.write.own.id, own)
            for shard, own in enumerate(digests, first)
        ]
        yield GroupResult(plan.write, tuple(reports))
        first += parts


# --- Indexing and verification.


def measure_index(steps, folder, shards):
    """Plans and commits the index of files that exist."""
    names = [layout.shard_name("c4", "train", n, shards) for n in range(shards)]
    _make_shards(folder, names)
    tasks = steps.timed("plan", plan_index, [folder])
    _expect(len(tasks), shards)
    steps.sent(next(iter(tasks)))
    options = "group_size:1,zstd:3,max_parallelism:1"
    found = steps.gathered(
        IndexedShard(
            task,
            _report(task.file, task.shard, INDEXED_JOB, _digest(task.shard, 100_000)),
            options,
        )
        for task in tasks
    )
    steps.timed("commit", IndexJob(files=(folder,)).commit, found)


def measure_verify(steps, folder, shards):
    """Plans and sums up a verification, of which each hundredth shard is damaged."""
    _alone(measure_index, Steps(), folder, shards)
    plan = steps.timed("plan", lambda: plan_verify(folder, shards_too=False))
    _expect(len(plan.tasks), shards)
    steps.sent(next(iter(plan.tasks)))

    def checks():
        for number, task in enumerate(plan.tasks):
            bad = (Finding(task.path, "record 7 is not", "1", "2"),)
            found = bad if number % 100 == 7 else ()
            sizes = task.digest.records, task.digest.raw_bytes
            yield ShardCheck(task.path, *sizes, found, task.file_bytes)

    gathered = steps.gathered(itertools.chain([plan.known], checks()))
    steps.timed("commit", VerifyJob(folder).commit, gathered)


PATHS = {
    "convert": measure_convert,
    "append": measure_append,
    "read": measure_read,
    "write": measure_write,
    "index": measure_index,
    "verify": measure_verify,
}


def _peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(path, shards):
    """Runs one path in this process; its memory is that above the imports alone."""
    imports_bytes = 0
    for count in (8, shards):  # All that is imported late is imported now.
        steps = Steps()
        imports_bytes = _peak_bytes() if count == shards else 0
        with tempfile.TemporaryDirectory() as folder:
            PATHS[path](steps, folder, count)
    seconds = [value for key, value in steps.found.items() if key.endswith("_seconds")]
    return {
        "shards": shards,
        "total_seconds": sum(seconds),
        "peak_bytes": _peak_bytes() - imports_bytes,
        "gathered_shard_bytes": steps.found["gathered_bytes"] / shards,
        **steps.found,
    }


def main(argv=None):
    """Measures each path and number of shards in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="|".join(PATHS))
    parser.add_argument(
        "--shards", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6, 4 * 10**6]
    )
    parser.add_argument("--json", type=pathlib.Path, help="where the runs are kept")
    args = parser.parse_args(argv)
    found = collections.defaultdict(list)
    for path, shards in itertools.product(args.paths or PATHS, args.shards):
        found[path].append(_alone(measure, path, shards))
        say(f"{path} {shards}: {found[path][-1]}")
    print(report.scale_table(found))
    if args.json:
        kept = {"environment": describe_environment(), "paths": found}
        args.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
