"""Conversions that race over HTTP: one dataset, one clear error, nothing damaged."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.anywhere import verify
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    convert_shard,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.servers.gcs_objects import StoredObject
from tests.servers.gcs_server import GcsServer
from tests.support.records import frames_of, text_records

OUTPUT = "gs://out/c4"
RECORDS = text_records(1200)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("in", "out") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("in", "a.tfrecord", frames_of(RECORDS[:500]))
        server.objects.put("in", "b.tfrecord", frames_of(RECORDS[500:]))
        yield server


def job_of(shards: int = 2, split: str = "train") -> ConversionJob:
    return ConversionJob(
        inputs=("gs://in/*.tfrecord",),
        output=OUTPUT,
        name="c4",
        split=split,
        plan=PlanOptions(kind="num_shards", value=shards),
    )


def convert(job: ConversionJob, *, overwrite: bool = False) -> None:
    prepared = begin_job(job, overwrite=overwrite).prepared
    commit_shards([job], [make_shard(task) for task in shard_tasks(prepared)])


def assert_whole(**shards: int) -> None:
    """The dataset has these splits, with so many shards, and no other file."""
    found = verify(OUTPUT, workers=1)
    assert found.findings == ()
    splits = open_manifest(OUTPUT).splits
    assert {name: split.shards for name, split in splits.items()} == shards
    assert all(split.records == len(RECORDS) for split in splits.values())


def assert_untouched(server: GcsServer, done: dict[str, StoredObject]) -> None:
    """Once other work is deleted, what was committed is there as it was."""
    write = open_manifest(OUTPUT).splits["train"].write
    clean(OUTPUT, unfinished=True)
    stored = dict(server.objects.buckets["out"])
    assert stored.pop("c4/dataset.json")
    assert stored == {name: found for name, found in done.items() if write in name}


def in_background(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(call, *args, **options)
    pool.shutdown(wait=False)
    return future


# Two processes.


def command(server: GcsServer, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "gristmill", "convert"),
            *("gs://in/*.tfrecord", OUTPUT, "--name=c4", "--workers=1", *options),
        ],
        env={**os.environ, "STORAGE_EMULATOR_HOST": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_of_two_processes_with_other_options_the_first_to_commit_wins(
    server: GcsServer, options: list[str]
) -> None:
    # The second begins while the first one's first shard is on its way.
    server.fail("hold", "insert", name="c4-train.array_record-00000-of-00003")
    first = command(server, "--num-shards=3")
    assert server.held.wait(30)
    second = command(server, "--num-shards=2", *options)
    second.communicate(timeout=60)
    assert second.returncode == 0
    server.release.set()
    _, error = first.communicate(timeout=60)
    assert first.returncode != 0
    assert "another command has changed the split" in error
    assert "Traceback" not in error
    clean(OUTPUT, unfinished=True)
    assert_whole(train=2)


# A worker that everybody has given up.


@pytest.mark.parametrize("hold", ["array_record-00000-of-00002", ".index"])
@pytest.mark.parametrize("again", ["same", "other"])
def test_an_upload_that_arrives_after_the_commit_changes_nothing(
    server: GcsServer, hold: str, again: str
) -> None:
    task = next(shard_tasks(begin_job(job_of()).prepared))
    server.fail("hold", "insert", name=hold)
    zombie = in_background(convert_shard, task.prepared, 0)
    assert server.held.wait(30)
    if again == "other":
        changed = [*RECORDS[:499], RECORDS[499][::-1]]
        server.objects.put("in", "a.tfrecord", frames_of(changed))
    convert(job_of(), overwrite=again == "other")
    done = dict(server.objects.buckets["out"])
    server.release.set()
    assert zombie.result(30).written.records > 0
    if again == "same":
        assert server.objects.buckets["out"] == done
    else:  # It has names of its own, and is work that is not finished.
        found = verify("gs://out/c4", workers=1)
        assert found.findings == ()
        shard, *described = found.leftovers
        assert shard == "c4-train.array_record-00000-of-00002"
        assert described == ["index/c4-train.inputs.npz", "index/c4-train.job.json"]
        assert_untouched(server, done)
    assert_whole(train=2)
