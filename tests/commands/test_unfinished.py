"""How far unfinished work is, read from what it has left on storage."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from gristmill.dataset import ColumnWriter
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import begin_removal
from tests.commands.conftest import json_of, refused, run
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
    refused("inspect", output, code=3)
    job = job_of(source, output, plan=("num_shards", 4), name="texts")
    results, begin = [], f"{output}: NOT committed\nsplit train: "
    for done, task in enumerate(shard_tasks(prepared_of(job))):
        (found,) = json_of("inspect", output)["unfinished"]
        assert (found["finished"], found["total"]) == (done, 4)
        said = run("inspect", output).stdout
        assert said.startswith(f"{begin}{done} of 4 shards finished")
        results.append(make_shard(task))
    # All shards are there: still it is no dataset.
    assert run("inspect", output).stdout.startswith(f"{begin}4 of 4 shards")
    commit_shards([job], results)
    assert json_of("inspect", output)["unfinished"] == []
    assert "NOT committed" not in run("inspect", output).stdout


def test_beside_a_split_that_is_committed(source, tmp_path):
    output = str(tmp_path / "out")
    convert(job_of(source, output, split="test", plan=("num_shards", 3)))
    prepared_of(job_of(source, output, split="train", plan=("num_shards", 3)))
    last = run("inspect", output).stdout.splitlines()[-1]
    assert last.startswith("NOT committed: split train: 0 of 3 shards finished")
    found = json_of("inspect", output)
    assert [one["split"] for one in found["unfinished"]] == ["train"]
    assert found["splits"].keys() == {"test"}
    assert "NOT committed" not in run("inspect", output, "--edition", "1").stdout
    cut_shard(next(iter(begin_removal(output, [0, 299]).tasks())))
    assert ": a removal, 1 shard finished" in run("inspect", output).stdout


def test_columns_that_are_attached(source, tmp_path):
    output = tmp_path / "out"
    convert(job_of(source, output, plan=("num_shards", 3)))
    count = int(read_table(output, open_manifest(output).splits["train"]).records[0])
    columns = {"a": "int64", "b": "int64"}
    with ColumnWriter(output, columns, part=0, parts=3) as writer:
        writer.write({name: np.zeros(count, np.int64) for name in columns})
    said = run("inspect", output).stdout
    assert "NOT committed: split train: 1 of 3 shards attached" in said


def test_half_a_beginning(source, tmp_path):
    prepared_of(job_of(source, tmp_path / "out"))
    next((tmp_path / "out").rglob("*.inputs.npz")).unlink()
    (found,) = json_of("inspect", tmp_path / "out")["unfinished"]
    assert [found[n] for n in ("split", "finished", "total")] == ["train", 0, 0]
    damaged = next((tmp_path / "out").rglob("*.job.json"))
    for text in ("", "[]", "{}", '{"job": {"name": "train"}}'):
        damaged.write_text(text)
        assert str(damaged) in refused("inspect", tmp_path / "out", code=3)
