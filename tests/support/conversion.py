"""Conversions as tests run them: in this process, with every file looked at."""

import json
import pathlib
import random

from gristmill.dataset import WriterOptions, encode_frame, open_manifest, read_table
from gristmill.pipelines.anywhere import verify
from gristmill.transforms import ConversionJob, PlanOptions
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import MakeShards, commit_shards
from gristmill.transforms.conversion.make_shards import make_shards, shard_tasks
from tests.support.records import frames_of, read_array_records


def job_of(inputs, output, *, shards=1, plan=None, **options):
    """Returns a job; `inputs` is a pattern, patterns, or a directory of files."""
    if isinstance(inputs, pathlib.Path):
        inputs = f"{inputs}/*" if inputs.is_dir() else str(inputs)
    patterns = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    kind, value = plan or ("num_shards", shards)
    return ConversionJob(
        inputs=patterns,
        output=str(output),
        plan=PlanOptions(kind=kind, value=value),  # type: ignore[arg-type]
        **{"name": "data", **options},
    )


def prepared_of(job, **options):
    """Prepares a job that is not committed yet."""
    taken = begin_job(job, **options)
    assert taken.committed is None
    return taken.prepared


def work_of(*jobs):
    """Returns what is to be done for jobs, after their begin."""
    work = MakeShards(jobs=jobs)
    return work.begun_by(map(begin_job, jobs))


def convert(*jobs, tasks=None, **options):
    """Converts with the plain functions, one shard after the other.

    Args:
        *jobs: The jobs.
        tasks: Shards to make first, such as in another order, or some of them twice.
        **options: As `begin_job` takes them.
    """
    results = [made for task in tasks or () for made in make_shards(task)]
    for job in jobs:
        for task in shard_tasks(prepared_of(job, **options)):
            results += make_shards(task)
    return commit_shards(jobs, results)


def finished_shard(prepared, shard):
    """Returns the report of a shard that an earlier run finished, None if none did."""
    return prepared.shard_place(shard).finished(prepared.write.id)


def read_output(output, split="train"):
    """Reads a split with the official reader, in the order of its table of shards."""
    table = read_table(str(output), open_manifest(str(output)).splits[split])
    return [
        record
        for path in table.paths
        for record in read_array_records(pathlib.Path(output, path))
    ]


def contents(directory):
    """Returns all files below a directory, by relative path."""
    root = pathlib.Path(directory)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def assert_whole(output):
    """The output is a dataset, and nothing else is there."""
    found = verify(str(output), workers=1)
    assert (found.findings, found.leftovers) == ((), ())


def skipped_in(output):
    """Returns the regions that were left out, shard by shard."""
    return [
        json.loads(line)
        for path in sorted(pathlib.Path(output, "errors").glob("*.jsonl"))
        for line in path.read_text().removesuffix("\n").split("\n")
    ]


def varied_records(count, *, seed, most_bytes=3000):
    """Returns records of very different sizes, empty ones among them."""
    chance = random.Random(seed)
    return [
        chance.randbytes(chance.choice((0, 1, 17, 300, chance.randrange(most_bytes))))
        for _ in range(count)
    ]


def nested_records(chance, *, depth=1):
    """Returns a record that consists of frames, the last of them cut short at times."""
    inner = [
        nested_records(chance, depth=depth - 1)
        if depth > 1
        else chance.randbytes(chance.randrange(60))
        for _ in range(chance.randrange(1, 6))
    ]
    payload = frames_of(inner)
    if chance.random() < 0.5:
        payload += encode_frame(b"cut short")[: chance.randrange(1, 24)]
    return payload


def dataset_of(folder, records, *, split="train", **writer):
    """Makes a dataset of three shards in a folder, and returns its directory."""
    source = folder / f"{split}.tfrecord"
    source.write_bytes(frames_of(records))
    options = WriterOptions(**writer)
    plan = ("num_shards", 3)
    convert(job_of(str(source), folder / "out", plan=plan, split=split, writer=options))
    return folder / "out"


def shards_of(dataset):
    """Returns the shards of the split `train`, relative to the dataset."""
    manifest = open_manifest(str(dataset))
    return list(read_table(str(dataset), manifest.splits["train"]).paths)
