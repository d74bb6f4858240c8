"""Conversion from and to gs://: the same bytes as on a local disk, whatever happens."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import random
import threading
import zlib
from collections.abc import Callable, Iterator

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, open_manifest, read_table
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    make_shard,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.servers.gcs_server import GcsServer
from tests.support.records import AWKWARD_RECORDS, decode_file, frames_of, text_records

SHARDS = 4
FILES = {
    f"part {number} #é[1].tfrecord": frames_of(records)
    for number, records in enumerate(
        [text_records(900), list(AWKWARD_RECORDS), text_records(700, seed=1)]
    )
}


@pytest.fixture
def server(
    monkeypatch: pytest.MonkeyPatch, blocks_of: Callable[[int], None]
) -> Iterator[GcsServer]:
    blocks_of(1 << 18)
    with GcsServer("in", "out") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name, data in FILES.items():
            server.objects.put("in", f"raw data/{name}", data)
        yield server


@pytest.fixture
def local(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "raw data"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return tmp_path


def job_of(
    source: str, output: str, *, shards: int = SHARDS, split: str = "train"
) -> ConversionJob:
    return ConversionJob(
        inputs=(f"{source}/raw data/part*.tfrecord",),
        output=output,
        name="c4",
        split=split,
        plan=PlanOptions(kind="num_shards", value=shards),
    )


def convert(job: ConversionJob) -> Manifest:
    tasks = list(shard_tasks(begin_job(job).prepared))
    with concurrent.futures.ThreadPoolExecutor(SHARDS) as pool:
        return commit_shards([job], list(pool.map(make_shard, tasks))).manifest


def shards_of(output: str) -> dict[str, bytes]:
    table = read_table(output, open_manifest(output).splits["train"])
    storage = storage_for(output)
    return {path: storage.read(layout.join(output, path)) for path in table.paths}


def expected_shards(local: pathlib.Path) -> dict[str, bytes]:
    output = str(local / "expected")
    convert(job_of(str(local), output))
    return shards_of(output)


@pytest.mark.parametrize("source", ["gs", "local"])
@pytest.mark.parametrize("target", ["gs", "local"])
def test_the_bytes_are_those_of_a_local_conversion(
    server: GcsServer, local: pathlib.Path, source: str, target: str
) -> None:
    output = "gs://out/sets/c4" if target == "gs" else str(local / "c4")
    manifest = convert(job_of("gs://in" if source == "gs" else str(local), output))
    assert shards_of(output) == expected_shards(local)
    records = [record for name in FILES for record in _records(FILES[name])]
    assert loader.open(output)[:20] == records[:20]
    shards = shards_of(output).values()
    assert [record for data in shards for record in decode_file(data)] == records
    assert manifest.splits["train"].records == len(records)


def _records(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 8], "little")
        yield data[position + 12 : position + 12 + length]
        position += length + 16


def test_nothing_but_the_dataset_is_written(
    server: GcsServer, local: pathlib.Path
) -> None:
    convert(job_of("gs://in", "gs://out/c4"))
    assert sorted(server.objects.buckets["out"]) == sorted(
        [
            "c4/dataset.json",
            *(
                f"c4/{layout.shard_name('c4', 'train', n, SHARDS)}"
                for n in range(SHARDS)
            ),
            *(
                f"c4/index/{layout.shard_name('c4', 'train', n, SHARDS)}.index"
                for n in range(SHARDS)
            ),
            f"c4/{layout.table_path('c4', 'train')}",
            f"c4/{layout.job_path('c4', 'train')}",
            f"c4/{layout.inputs_path('c4', 'train')}",
        ]
    )
    # Once each: no object is written twice, and none on the way.
    written = [name for kind, name, _ in server.log if kind in ("insert", "start")]
    assert sorted(written) == sorted(server.objects.buckets["out"])


@pytest.mark.slow
def test_finished_shards_are_kept(server: GcsServer, local: pathlib.Path) -> None:
    job = job_of("gs://in", "gs://out/c4")
    tasks = list(shard_tasks(begin_job(job).prepared))
    make_shard(tasks[0])
    make_shard(tasks[2])
    # A crash between a shard and its index, and a shard that was damaged since.
    make_shard(tasks[3])
    name = layout.shard_name("c4", "train", 3, SHARDS)
    storage_for("gs://out").delete(f"gs://out/c4/index/{name}.index")
    damaged = f"c4/{layout.shard_name('c4', 'train', 2, SHARDS)}"
    size = len(server.objects.buckets["out"][damaged].data)
    server.objects.put("out", damaged, bytes(size))
    server.log.clear()
    convert(job)
    assert shards_of("gs://out/c4") == expected_shards(local)
    written = {name for kind, name, _ in server.log if kind in ("insert", "start")}
    first = layout.shard_name("c4", "train", 0, SHARDS)
    assert not {name for name in written if first in name}
    server.log.clear()
    again = begin_job(job)
    assert again.committed is not None
    assert not [kind for kind, _, _ in server.log if kind in ("insert", "start")]


@pytest.mark.slow
def test_a_compressed_object_is_read_once_for_all_shards(server: GcsServer) -> None:
    records = [random.Random(n).randbytes(700) for n in range(3000)]
    data = zlib.compress(frames_of(records))
    server.objects.put("in", "large.gz", data)
    job = dataclasses.replace(
        job_of("gs://in", "gs://out/c4", shards=9), inputs=("gs://in/large.gz",)
    )
    (task,) = shard_tasks(begin_job(job).prepared)
    made = make_shards(task)
    before = server.sent_bytes
    assert [next(made).task.shard for _ in range(4)] == [0, 1, 2, 3]
    made.close()
    # Another worker goes on; a part is damaged on the way to it, and read again.
    between = server.sent_bytes
    server.fail("flip", "media", skip=2)
    server.log.clear()
    results = list(make_shards(task))
    written = [name for kind, name, _ in server.log if kind in ("insert", "start")]
    assert len(written) == 2 * 5
    assert not server.faults[0].times
    # What was fetched ahead, and the indexes of finished shards, come on top of it.
    assert between - before < 1.1 * len(data)
    assert server.sent_bytes - between < 2.2 * len(data)
    commit_shards([job], results)
    shards = shards_of("gs://out/c4").values()
    assert [record for data in shards for record in decode_file(data)] == records


@pytest.mark.slow
def test_two_workers_make_one_shard(server: GcsServer, local: pathlib.Path) -> None:
    job = job_of("gs://in", "gs://out/c4")
    tasks = list(shard_tasks(begin_job(job).prepared)) * 3
    with concurrent.futures.ThreadPoolExecutor(len(tasks)) as pool:
        results = list(pool.map(make_shard, tasks))
    written = [name for kind, name, _ in server.log if kind in ("insert", "start")]
    assert len(written) > 2 * SHARDS + 2  # There really was a race.
    commit_shards([job], results)
    assert shards_of("gs://out/c4") == expected_shards(local)


def test_an_input_that_changes_after_it_was_listed_is_named(
    server: GcsServer,
) -> None:
    tasks = list(shard_tasks(begin_job(job_of("gs://in", "gs://out/c4")).prepared))
    name = f"raw data/{next(iter(FILES))}"
    server.objects.put("in", name, server.objects.buckets["in"][name].data)
    with pytest.raises(StorageChangedError, match="raw data"):
        make_shard(tasks[0])


def test_a_missing_bucket_is_named_before_any_work(server: GcsServer) -> None:
    with pytest.raises(StorageError, match="bucket does not exist"):
        begin_job(job_of("gs://in", "gs://none/c4"))
    with pytest.raises(StorageError, match="bucket does not exist"):
        begin_job(job_of("gs://none", "gs://out/c4"))
    assert not server.objects.buckets["out"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_uploads_overlap_and_local_bytes_are_bounded(
    server: GcsServer,
    tmp_path: pathlib.Path,
    temporary_in: Callable[[object], None],
    workers: int,
) -> None:
    """While shards are on their way, the next ones are made, but not too many."""
    temporary_in(tmp_path)
    server.fail(
        "slow", "insert", name="c4-train.array_record-", times=10**9, seconds=0.3
    )
    job = job_of("gs://in", "gs://out/c4", shards=12)
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, len(list(tmp_path.glob("gristmill-*/tmp-c4-train"))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run_conversion([job], workers=workers)
    finally:
        done.set()
        watcher.join()
    # Each of small shards: one is written, others are on their way.
    assert 1 < most <= 3 * workers
    assert not list(tmp_path.glob("gristmill-*"))
