"""Commands of several processes on one dataset: none loses what it reported."""

import concurrent.futures
import os
import threading

import pytest

from gristmill.dataset.commit.clean import clean
from gristmill.dataset.storage.local import LocalStorage
from gristmill.dataset.storage.lookup import version_of
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.make_shards import convert_shard, shard_tasks
from tests.changes.changes import assert_whole, convert, found_by_verify, split_of
from tests.changes.races import Race
from tests.servers.gcs_process import GcsProcess
from tests.support.conversion import job_of
from tests.support.records import frames_of, text_records
from tests.support.watched import watched

SOAK_COMMANDS = int(os.environ.get("GRISTMILL_TEST_COMMANDS", "300"))
SEEDS = os.environ.get("GRISTMILL_TEST_SEEDS", "2 3")
ROUNDS = [
    pytest.param(80, 1, True, marks=pytest.mark.slow),
    *(
        pytest.param(SOAK_COMMANDS, seed, unfinished, marks=pytest.mark.soak)
        for seed in map(int, SEEDS.split())
        for unfinished in (False, True)
    ),
]


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path, monkeypatch):
    if request.param == "disk":
        yield str(tmp_path / "out")
        return
    with GcsProcess("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield "gs://bucket/out"


@pytest.mark.parametrize(("commands", "seed", "unfinished"), ROUNDS)
def test_nothing_is_lost_and_every_reader_sees_one_state(
    place, tmp_path, commands, seed, unfinished
):
    """Random commands, killed anywhere, and a reader beside them."""
    race = Race(tmp_path, place, seed, unfinished=unfinished)
    race.run(commands, processes=2 if commands < SOAK_COMMANDS else 3)
    race.check()
    assert race.read
    assert 0 in {ran.status for ran in race.ran}


# What the version of a file on a disk prevents.


def test_a_file_is_not_deleted_that_was_replaced_after_the_look(tmp_path, monkeypatch):
    storage, path = LocalStorage(), str(tmp_path / "a")
    storage.write(path, b"old", replaces="")
    seen = version_of(path)
    other = threading.Thread(target=storage.write, args=(path, b"new"))

    def unlink(name):
        if name == path and other.ident is None:
            other.start()
            other.join(0.5)
            assert other.is_alive()

    watched(monkeypatch, os, "unlink", unlink)
    storage.delete(path, version=seen)
    other.join()
    assert storage.read(path) == b"new"


# A worker that everybody has given up.


@pytest.mark.parametrize("hold", ["array_record-00000-of-00002", ".index"])
@pytest.mark.parametrize("again", ["same", "other"])
def test_an_upload_that_arrives_after_the_commit_changes_nothing(server, hold, again):
    output, objects = "gs://out/d", server.objects
    records = text_records(900)
    objects.put("in", "a.tfrecord", frames_of(records))
    job = job_of("gs://in/*", output, name="d", plan=("num_shards", 2))
    task = next(shard_tasks(begin_job(job).prepared))
    server.fail("hold", "insert", name=hold)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        zombie = pool.submit(convert_shard, task.prepared, 0)
        assert server.held.wait(30)
        if again == "other":
            records = text_records(900, seed=1)
            objects.put("in", "a.tfrecord", frames_of(records))
        convert(output, "gs://in/*", writer=job.writer, overwrite=again == "other")
        done = dict(objects.buckets["out"])
        server.release.set()
        assert zombie.result(30).written.records > 0
    if again == "other":
        # It has names of its own, and is not finished.
        left = ["d-train.array_record-00000-of-00002", "index/d-train.inputs.npz"]
        left.append("index/d-train.job.json")
        assert found_by_verify(output) == ([], left)
        clean(output, unfinished=True)
        write = split_of(output).write
        done = {name: stored for name, stored in done.items() if write in name}
        done["d/dataset.json"] = objects.buckets["out"]["d/dataset.json"]
    assert objects.buckets["out"] == done
    assert_whole(output, records)
