"""From and to gs://: the same bytes as on a local disk, in few requests."""

from __future__ import annotations

import pathlib
import random
import threading
import zlib
from collections.abc import Callable, Iterator

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill import loader
from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines import (
    convert_tf_to_arrayrecord_disk,
    convert_tf_to_arrayrecord_gcs,
)
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.convert import convert
from gristmill.transforms import (
    ReadArrayRecords,
    ReadTFRecords,
    VerifyDataset,
    WriteArrayRecords,
)
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shards, shard_tasks
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import contents, job_of
from tests.support.pipelines import BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import AWKWARD_RECORDS, frames_of, text_records

PARTS = [text_records(900), list(AWKWARD_RECORDS), text_records(700, seed=1)]
RECORDS = [record for part in PARTS for record in part]
PLAN = ("num_shards", 4)


@pytest.fixture
def local(tmp_path: pathlib.Path) -> str:
    (tmp_path / "raw data").mkdir()
    for number, records in enumerate(PARTS):
        name = f"raw data/part {number} #é[1].tfrecord"
        (tmp_path / name).write_bytes(frames_of(records))
    return str(tmp_path)


@pytest.fixture
def server(
    local: str, monkeypatch: pytest.MonkeyPatch, blocks_of: Callable[[int], None]
) -> Iterator[GcsServer]:
    blocks_of(1 << 18)
    with GcsServer("in", "out") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name, data in contents(local).items():
            server.objects.put("in", name, data)
        yield server


def stored(folder: str) -> dict[str, bytes]:
    """Returns all objects below a folder of the output, by relative name."""
    storage = storage_for("gs://out")
    return {
        info.path.removeprefix(f"gs://out/{folder}/"): storage.read(info.path)
        for info in storage.match(f"gs://out/{folder}/**")
    }


@pytest.mark.parametrize("source", ["gs", "local"])
@pytest.mark.parametrize("target", ["gs", "local"])
def test_the_bytes_are_those_of_a_local_conversion(server, local, source, target):
    places = {"gs": ("gs://in", "gs://out/sets/c4"), "local": (local, f"{local}/c4")}
    pattern = "raw data/part*.tfrecord"
    output = places[target][1]
    convert([job_of(f"{places[source][0]}/{pattern}", output, plan=PLAN)], workers=1)
    convert([job_of(f"{local}/{pattern}", f"{local}/expected", plan=PLAN)], workers=1)
    found = stored("sets/c4") if target == "gs" else contents(output)
    expected = contents(f"{local}/expected")
    assert found.keys() == expected.keys()
    for name, data in found.items():
        assert "array_record-" not in name or "index" in name or data == expected[name]
    assert loader.open(output)[:] == RECORDS
    # Once each: no object is written twice, and none on the way.
    written = [name for kind, name, _ in server.log if kind in ("insert", "start")]
    assert sorted(written) == sorted(server.objects.buckets["out"])


@pytest.mark.slow
def test_a_compressed_object_is_read_once_for_all_shards(server):
    records = [random.Random(n).randbytes(700) for n in range(3000)]
    data = zlib.compress(frames_of(records))
    server.objects.put("in", "large.gz", data)
    job = job_of("gs://in/large.gz", "gs://out/c4", plan=("num_shards", 9))
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
    assert loader.open("gs://out/c4")[:] == records


@pytest.mark.parametrize("which", ["in", "out"])
def test_a_missing_bucket_is_named_before_any_work(server, which):
    places = {"in": "gs://in/raw*/*", "out": "gs://out/c4"} | {which: "gs://none/x"}
    with pytest.raises(StorageError, match="bucket does not exist"):
        begin_job(job_of(places["in"], places["out"]))
    assert not server.objects.buckets["out"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_uploads_overlap_and_local_bytes_are_bounded(
    server, tmp_path, temporary_in: Callable[[object], None], workers
):
    """While shards are on their way, the next ones are made, but not too many."""
    temporary_in(tmp_path)
    slow = {"name": "data-train.array_record-", "times": 10**9, "seconds": 0.3}
    server.fail("slow", "insert", **slow)
    counts, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            counts.append(len([*tmp_path.glob("gristmill-*/tmp-data-train")]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        job = job_of("gs://in/raw*/*", "gs://out/c4", plan=("num_shards", 12))
        convert([job], workers=workers)
    finally:
        done.set()
        watcher.join()
    # Each of small shards: one is written, others are on their way.
    assert 1 < max(counts) <= 3 * workers
    assert not list(tmp_path.glob("gristmill-*"))


@pytest.mark.slow
def test_transforms_read_write_and_verify(server, tmp_path):
    options = {"num_shards": 3, "shard_bytes": 50_000}
    run(beam.Create(RECORDS), WriteArrayRecords(str(tmp_path / "data"), **options))
    (result,) = run(
        ReadTFRecords("gs://in/raw*/*.tfrecord", range_bytes=20_000),
        WriteArrayRecords("gs://out/some/data", **options),
        argv=BUNDLES_TWICE,
    )
    assert result.records == len(RECORDS)
    assert stored("some/data") == contents(tmp_path / "data")
    reading = ReadArrayRecords("gs://out/some/data", range_bytes=20_000)
    assert sorted(run(reading)) == sorted(RECORDS)
    (verified,) = run(VerifyDataset("gs://out/some/data"))
    assert (verified.findings, verified.records) == ((), len(RECORDS))


@pytest.mark.slow
def test_the_pipelines_of_array_record_run_here_too(server):
    options = PipelineOptions(list(IN_MEMORY))
    args = {"input": "gs://in/raw*/part 0*", "output": "gs://out/each"}
    convert_tf_to_arrayrecord_gcs(args=args, pipeline_options=options).run()
    args["output"] = "gs://out/prefix/data"
    convert_tf_to_arrayrecord_disk(2, args, options).run()
    for folder, names in {
        "each": ["part 0 #é[1].tfrecord.arrayrecord"],
        "prefix": [f"data-0000{n}-of-00002.arrayrecord" for n in range(2)],
    }.items():
        found = {name for name in stored(folder) if "/" not in name}
        assert found == {"dataset.json", *names}
        found = verify(f"gs://out/{folder}", workers=1)
        assert (found.findings, found.records) == ((), 900)
