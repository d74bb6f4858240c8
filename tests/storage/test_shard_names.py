"""Names of shards: every reader opens the file, and the dataset has no other by it."""

from __future__ import annotations

import pathlib
import re

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.jobs.conversion_job import ShardNames
from tests.support.conversion import contents, job_of
from tests.support.records import frames_of, text_records

RECORDS = text_records(40)


@pytest.fixture
def out(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (ShardNames(kind="inputs", suffix=".ar"), "a\\b.ar"),
        (ShardNames(kind="inputs", suffix="/ar"), "a\\b/ar"),
        (ShardNames(kind="beam", prefix="a\\b"), "a\\b-00000-of-00001"),
    ],
    ids=["input", "suffix", "prefix"],
)
def test_a_shard_that_no_reader_would_open(tmp_path, out, names, name):
    (tmp_path / "a\\b").write_bytes(frames_of(RECORDS))
    job = job_of(f"{tmp_path}/a*b", out, names=names, plan=("match_shards", None))
    with pytest.raises(InputError, match=re.escape(repr(name))):
        begin_job(job)
    assert contents(out) == {}


@pytest.mark.parametrize("name", ["dataset.json", "index", "errors"])
def test_a_shard_in_the_place_of_a_file_of_the_dataset(tmp_path, out, name):
    (tmp_path / name).write_bytes(frames_of(RECORDS))
    names = ShardNames(kind="inputs")
    job = job_of(tmp_path / name, out, names=names, plan=("match_shards", None))
    with pytest.raises(InputError, match="cannot be the name of a shard"):
        begin_job(job)
