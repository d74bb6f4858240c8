"""Large compressed inputs: many shards in one pass over the file, whatever happens."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
import zlib
from contextlib import closing

import numpy as np
import pytest
import zstandard

from gristmill.dataset.base.errors import CorruptInputError
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.transforms.conversion.make_shards import (
    convert_shard,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.sources.source import KeptPass
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import (
    contents,
    convert,
    finished_shard,
    job_of,
    prepared_of,
    read_output,
    varied_records,
)
from tests.support.records import frames_of

SHARDS = 20
RECORDS = varied_records(3000, seed=1)


@pytest.fixture
def job(tmp_path) -> ConversionJob:
    (tmp_path / "in.gz").write_bytes(gzip.compress(frames_of(RECORDS)))
    plan = ("num_shards", SHARDS)
    return job_of(tmp_path / "in.gz", tmp_path / "out", plan=plan)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress, zstandard.compress])
def test_one_pass_makes_all_shards(server: GcsServer, tmp_path, compress) -> None:
    data = compress(frames_of(RECORDS))
    server.objects.put("bucket", "in", data)
    plan = ("shard_bytes", 100_000)
    prepared = prepared_of(job_of("gs://bucket/in", tmp_path / "out", plan=plan))
    assert prepared.plan.shards >= 10
    server.sent_bytes = 0
    (task,) = shard_tasks(prepared)
    assert len(list(make_shards(task))) == prepared.plan.shards
    assert server.sent_bytes == len(data)
    convert(prepared.job)
    assert read_output(tmp_path / "out") == RECORDS
    # By stored bytes, and so by records' bytes where all compress alike.
    sizes = [file.stat().st_size for file in tmp_path.glob("out/data-train.array*")]
    assert max(sizes) < 2 * np.mean(sizes)


def test_a_worker_and_its_replacement_at_once(job, tmp_path) -> None:
    (task,) = shard_tasks(prepared_of(job))
    stalled, replacement = make_shards(task), make_shards(task)
    first = [next(stalled), next(stalled)]
    second = [next(replacement) for _ in range(5)]
    # It goes on with shards that the other has made meanwhile, and overtakes it.
    first += [next(stalled) for _ in range(8)]
    second += list(replacement)
    first += list(stalled)
    one, other = ([r._replace(resumed=False) for r in made] for made in (first, second))
    assert one == other
    assert [result.task.shard for result in one] == list(range(SHARDS))
    undisturbed = dataclasses.replace(job, output=str(tmp_path / "undisturbed"))
    convert(undisturbed)
    convert(job)
    assert contents(job.output) == contents(undisturbed.output)


def test_two_workers_write_the_same_shard_at_once(job) -> None:
    """Each looks before the other has published."""
    prepared = prepared_of(job)
    places = [ShardPlace.at(job.output, prepared.shard_path(0)) for _ in range(2)]
    with closing(KeptPass()) as one, closing(KeptPass()) as other:
        for place, kept in zip(places, (one, other), strict=True):
            convert_shard(prepared, 0, place=place, kept=kept)
        made = [convert_shard(prepared, 1, kept=kept) for kept in (one, other)]
    assert made[0] == made[1]
    convert(job)
    assert read_output(job.output) == RECORDS


def test_damage_ends_the_work_with_the_shards_before_it(job) -> None:
    data = bytearray(frames_of(RECORDS))
    data[len(frames_of(RECORDS[:2000])) + 3] ^= 1
    pathlib.Path(job.inputs[0]).write_bytes(gzip.compress(bytes(data)))
    with pytest.raises(CorruptInputError, match="byte offset"):
        convert(job)
    prepared = prepared_of(job)
    finished = [s for s in range(SHARDS) if finished_shard(prepared, s) is not None]
    assert 5 < len(finished) < SHARDS
    assert finished == list(range(len(finished)))
    convert(dataclasses.replace(job, on_corrupt="skip"))
    assert read_output(job.output) == RECORDS[:2000] + RECORDS[2001:]
