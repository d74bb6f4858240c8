"""Large compressed inputs: many shards in one pass over the file, whatever happens."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import inspect
import itertools
import pathlib
import random
import signal
import zlib
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import zstandard

from gristmill.dataset.base.errors import CorruptInputError
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    convert_shard,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.sources.source import KeptPass
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import (
    contents,
    convert,
    finished_shard,
    job_of,
    prepared_of,
    read_output,
    skipped_in,
    varied_records,
)
from tests.support.kills import Killer
from tests.support.records import frames_of

SHARDS = 20
RECORDS = varied_records(3000, seed=1)
PLANS = [
    ("num_shards", SHARDS),
    ("shard_bytes", 100_000),
]


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    path = tmp_path / "in.tfrecord.gz"
    path.write_bytes(gzip.compress(frames_of(RECORDS)))
    return path


@pytest.fixture
def server(monkeypatch) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("bucket", "in", gzip.compress(frames_of(RECORDS)))
        yield server


def states(output: pathlib.Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in output.rglob("*.array_record-*")
    }


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "plan"), list(itertools.product(["gzip", "zlib", "zstd"], PLANS))
)
def test_one_pass_makes_all_shards(server, tmp_path, plan, kind) -> None:
    pack = {"gzip": gzip, "zlib": zlib, "zstd": zstandard}[kind].compress
    data = pack(frames_of(RECORDS))
    server.objects.put("bucket", "in", data)
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


def keep_most(record: bytes) -> bytes | None:
    return None if record.startswith(b"17") else record + b"!"


@pytest.mark.slow
def test_a_killed_command_goes_on(tmp_path) -> None:
    records = [b"%d " % n + random.Random(n).randbytes(300) for n in range(600)]
    data = bytearray(frames_of(records))
    for record in (3, 290, 571):
        data[len(frames_of(records[:record])) + 40] ^= 1
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(bytes(data)))

    def command(output: pathlib.Path) -> list[str]:
        return [
            *("convert", str(path), str(output), "--name", "data", "--shard-size"),
            *("20000", "--workers", "1", "--on-corrupt", "skip"),
            *("--map", "keeping:keep_most"),
        ]

    # By itself: each command would import all that this file does.
    (tmp_path / "keeping.py").write_text(inspect.getsource(keep_most))
    with Killer(tmp_path) as killer:
        run = functools.partial(killer.run, cwd=tmp_path)
        assert run(command(tmp_path / "undisturbed")).status == 0
        expected = contents(tmp_path / "undisturbed")
        assert len(expected) > 2 * 9
        left = set()
        for kill_at in (8, 41, 77):
            output = tmp_path / str(kill_at)
            ended = run(command(output), kill_at=kill_at)
            assert ended.status == -signal.SIGKILL, ended.error
            before = states(output)
            finished = {name for name in before if _is_finished(output, name)}
            left.add(len(finished))
            # Again, and killed in one of the shards that are missing.
            run(command(output), kill_at=25, after=True)
            ended = run(command(output))
            assert ended.status == 0, ended.error
            after = states(output)
            assert all(after[name] == before[name] for name in finished)
            assert contents(output) == expected
    assert len(left) == 3  # They were killed at different shards.
    good = [record for n, record in enumerate(records) if n not in (3, 290, 571)]
    mapped = [m for m in map(keep_most, good) if m is not None]
    assert read_output(tmp_path / "undisturbed") == mapped
    assert len(skipped_in(tmp_path / "undisturbed")) == 3


def _is_finished(output: pathlib.Path, shard: str) -> bool:
    name = pathlib.Path(shard).name.removesuffix(".index")
    return (output / "index" / f"{name}.index").exists()


def told(results: list[ShardResult]) -> list[ShardResult]:
    """Returns results, whether or not the shards were there already."""
    return [result._replace(resumed=False) for result in results]


def test_a_worker_and_its_replacement_at_once(path, tmp_path) -> None:
    job = job_of(path, tmp_path / "out", plan=PLANS[0])
    (task,) = shard_tasks(prepared_of(job))
    stalled, replacement = make_shards(task), make_shards(task)
    first = [next(stalled), next(stalled)]
    second = [next(replacement) for _ in range(5)]
    assert told(second[:2]) == told(first)
    # It goes on with shards that the other has made meanwhile, and overtakes it.
    first += [next(stalled) for _ in range(8)]
    made = second + list(replacement)
    assert told(made) == told(first + list(stalled))
    assert [result.task.shard for result in made] == list(range(SHARDS))
    undisturbed = dataclasses.replace(job, output=str(tmp_path / "undisturbed"))
    convert(undisturbed)
    convert(job)
    assert contents(tmp_path / "out") == contents(undisturbed.output)


def test_two_workers_write_the_same_shard_at_once(path, tmp_path) -> None:
    """Each looks before the other has published."""
    job = job_of(path, tmp_path / "out", plan=PLANS[0])
    prepared = prepared_of(job)
    places = [ShardPlace.at(job.output, prepared.shard_path(0)) for _ in range(2)]
    with closing(KeptPass()) as one, closing(KeptPass()) as other:
        for place, kept in zip(places, (one, other), strict=True):
            convert_shard(prepared, 0, place=place, kept=kept)
        assert convert_shard(prepared, 1, kept=one) == convert_shard(
            prepared, 1, kept=other
        )
    convert(job)
    assert read_output(job.output) == RECORDS


def test_damage_ends_the_work_with_the_shards_before_it(path, tmp_path) -> None:
    data = bytearray(frames_of(RECORDS))
    data[len(frames_of(RECORDS[:2000])) + 3] ^= 1
    path.write_bytes(gzip.compress(bytes(data)))
    job = job_of(path, tmp_path / "out", plan=PLANS[0])
    with pytest.raises(CorruptInputError, match="byte offset"):
        convert(job)
    prepared = prepared_of(job)
    finished = [s for s in range(SHARDS) if finished_shard(prepared, s) is not None]
    assert 5 < len(finished) < SHARDS
    assert finished == list(range(len(finished)))
    convert(dataclasses.replace(job, on_corrupt="skip"))
    assert read_output(job.output) == RECORDS[:2000] + RECORDS[2001:]
