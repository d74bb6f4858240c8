"""Progress of a conversion, read from what it has left on storage."""

from __future__ import annotations

import json
import pathlib

import pytest

from gristmill.dataset import Writer, commit_parts
from gristmill.dataset.base.errors import (
    GristmillError,
    InvalidDatasetError,
    NotADatasetError,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.text.status import read_status
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.shard_tasks import make_shard, shard_tasks
from tests.support.cloud import running
from tests.support.conversion import convert, job_of, prepared_of
from tests.support.records import text_records, write_tfrecords


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "in").mkdir()
    for file in range(3):
        records = text_records(100, seed=file)
        write_tfrecords(tmp_path / "in" / f"{file}.tfrecord", records)
    return tmp_path / "in"


def test_progress_grows_shard_by_shard(source, tmp_path):
    output = str(tmp_path / "out")
    job = job_of(source, output, plan=("num_shards", 4), name="texts")
    prepared = prepared_of(job)
    total = sum(path.stat().st_size for path in source.iterdir())
    results = []
    for done, task in enumerate(shard_tasks(prepared)):
        status = read_status(output)
        (split,) = status.splits
        assert not status.committed
        assert (split.finished_shards, split.shards) == (done, 4)
        assert split.input_bytes == total
        assert split.finished_input_bytes == int(prepared.plan.cut_bytes[done])
        assert "NOT committed" in status.text()
        assert f"{done} of 4 shards finished" in status.text()
        results.append(make_shard(task))
    # All shards are there: still it is no dataset.
    assert read_status(output).splits[0].finished_shards == 4
    assert not read_status(output).committed
    commit_shards([job], results)
    status = read_status(output)
    assert status.committed
    assert status.splits[0].records == 300
    assert "NOT" not in status.text()
    assert "300 records in 4 shards, committed" in status.text()


def test_splits_are_told_apart(source, tmp_path):
    output = tmp_path / "out"
    convert(job_of(source, output, split="test"))
    prepared_of(job_of(source, output, split="train", plan=("num_shards", 3)))
    status = read_status(f"{output}/")
    assert [split.split for split in status.splits] == ["test", "train"]
    assert [split.committed for split in status.splits] == [True, False]
    assert not status.committed
    assert status.text().startswith(f"{output}: committed, with unfinished work\n")
    fields = json.loads(status.json())
    assert fields["splits"][1]["shards"] == 3
    assert fields["dataset"] == str(output)


def test_nothing_there_and_half_a_beginning(source, tmp_path):
    with pytest.raises(NotADatasetError, match="no dataset and no conversion here"):
        read_status(str(tmp_path / "out"))
    prepared_of(job_of(source, tmp_path / "out"))
    next((tmp_path / "out").rglob("*.inputs.npz")).unlink()
    with pytest.raises(GristmillError, match="lacks its list of files"):
        read_status(str(tmp_path / "out"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": {"name": "train"}}'])
def test_a_damaged_description_is_named(source, tmp_path, text):
    prepared_of(job_of(source, tmp_path / "out"))
    damaged = next((tmp_path / "out").rglob("*.job.json"))
    damaged.write_text(text)
    with pytest.raises(InvalidDatasetError, match="cannot be read") as caught:
        read_status(str(tmp_path / "out"))
    assert caught.value.where == str(damaged)
    assert "Error(" in str(caught.value.got)


def write_part(output: pathlib.Path, part: int) -> None:
    with Writer(output, part=part, parts=3, records_per_shard=2) as writer:
        for _ in range(5):
            writer.write(b"record")


def test_what_a_program_writes(tmp_path):
    output = tmp_path / "data"
    write_part(output, 1)
    with Writer(output, part=0, parts=3, records_per_shard=2) as writer:
        writer.write(b"record")
        found = read_status(str(output))
        assert found.text() == (
            f"{output}: NOT committed\nsplit train: 3 shards written by a program, "
            "1 of 3 parts finished"
        )
        (writing,) = json.loads(found.json())["writing"]
        assert writing == {
            **{"split": "train", "parts": 3},
            **{"finished_parts": 1, "finished_shards": 3},
        }
    write_part(output, 2)
    commit_parts(output)
    assert read_status(str(output)).writing == ()
    assert read_status(str(output)).committed


def test_in_a_bucket():
    with running() as cloud:
        output = "gs://data/texts"
        job = job_of("gs://raw/texts/*", output, plan=("num_shards", 5), name="texts")
        tasks = list(shard_tasks(prepared_of(job)))
        for task in tasks[1:3]:
            make_shard(task)
        before = cloud.storage.requests.total()
        (split,) = read_status(output).splits
        assert (split.finished_shards, split.shards) == (2, 5)
        # A look costs no request a shard.
        assert cloud.storage.requests.total() - before < 10
        done = cloud.gristmill("status", output, "--json")
        assert json.loads(done.stdout)["splits"][0]["finished_shards"] == 2
        assert storage_for(output).stat(f"{output}/dataset.json") is None
