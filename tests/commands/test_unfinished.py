"""How far unfinished work is, read from what it has left on storage."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from click.testing import CliRunner

from gristmill.dataset import ColumnWriter
from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.metadata.manifest import open_manifest, read_manifest, read_table
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.text.unfinished import Unfinished, read_unfinished
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import begin_removal
from tests.support.conversion import convert, job_of, prepared_of
from tests.support.records import text_records, write_tfrecords


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "in").mkdir()
    for file in range(3):
        records = text_records(100, seed=file)
        write_tfrecords(tmp_path / "in" / f"{file}.tfrecord", records)
    return tmp_path / "in"


def unfinished(output: object) -> list[Unfinished]:
    return read_unfinished(str(output), read_manifest(str(output)))


def inspect(output: object, *options: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["inspect", str(output), *options])
    assert done.exit_code == code, done.output
    return done.stdout


def test_progress_grows_shard_by_shard(source, tmp_path):
    output = str(tmp_path / "out")
    job = job_of(source, output, plan=("num_shards", 4), name="texts")
    prepared = prepared_of(job)
    results = []
    for done, task in enumerate(shard_tasks(prepared)):
        (found,) = unfinished(output)
        assert (found.finished, found.total) == (done, 4)
        assert f"{done} of 4 shards finished" in found.text()
        results.append(make_shard(task))
    # All shards are there: still it is no dataset.
    text = inspect(output)
    assert text.startswith(f"{output}: NOT committed\nsplit train: 4 of 4 shards")
    (found,) = json.loads(inspect(output, "--json"))["unfinished"]
    assert (found["split"], found["finished"], found["total"]) == ("train", 4, 4)
    commit_shards([job], results)
    assert unfinished(output) == []
    assert "NOT committed" not in inspect(output)


def test_beside_a_split_that_is_committed(source, tmp_path):
    output = tmp_path / "out"
    convert(job_of(source, output, split="test"))
    prepared_of(job_of(source, output, split="train", plan=("num_shards", 3)))
    last = inspect(output).splitlines()[-1]
    assert last.startswith("NOT committed: split train: 0 of 3 shards finished")
    found = json.loads(inspect(output, "--json"))
    assert [one["split"] for one in found["unfinished"]] == ["train"]
    assert found["splits"].keys() == {"test"}
    assert "NOT committed" not in inspect(output, "--edition", "1")


def test_a_removal_and_what_is_beside_it(source, tmp_path):
    output = str(tmp_path / "out")
    convert(job_of(source, output, plan=("num_shards", 3)))
    removal = begin_removal(output, [0, 299])
    assert removal is not None
    cut_shard(next(iter(removal.tasks())))
    (found,) = unfinished(output)
    assert found.text().endswith("a removal, 1 shard finished")


def test_nothing_there_and_half_a_beginning(source, tmp_path):
    inspect(tmp_path / "out", code=3)
    prepared_of(job_of(source, tmp_path / "out"))
    next((tmp_path / "out").rglob("*.inputs.npz")).unlink()
    (found,) = unfinished(tmp_path / "out")
    assert (found.split, found.finished, found.total) == ("train", 0, 0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": {"name": "train"}}'])
def test_a_damaged_description_is_named(source, tmp_path, text):
    prepared_of(job_of(source, tmp_path / "out"))
    damaged = next((tmp_path / "out").rglob("*.job.json"))
    damaged.write_text(text)
    with pytest.raises(InvalidDatasetError) as caught:
        unfinished(tmp_path / "out")
    assert caught.value.where == str(damaged)


def test_columns_that_are_attached(source, tmp_path):
    output = tmp_path / "out"
    convert(job_of(source, output, plan=("num_shards", 3)))
    count = int(read_table(output, open_manifest(output).splits["train"]).records[0])
    columns = {"a": "int64", "b": "int64"}
    with ColumnWriter(output, columns, part=0, parts=3) as writer:
        writer.write({name: np.zeros(count, np.int64) for name in columns})
    assert "NOT committed: split train: 1 of 3 shards attached" in inspect(output)
