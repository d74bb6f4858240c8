"""Conversions with either writer: the same records, for every reader.

Covers: dataset/arrayrecord/writing/file_writer.py, dataset/arrayrecord/shard_writer.py.
"""

from __future__ import annotations

import pathlib
from typing import get_args

import grain
import pytest

from gristmill import loader
from gristmill.dataset.arrayrecord.writer_options import Writer, WriterOptions
from gristmill.dataset.arrayrecord.writing import file_writer
from gristmill.dataset.errors import JobChangedError
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.transforms.conversion.begin_job import begin_job
from gristmill.transforms.conversion.shard_tasks import make_shard, shard_tasks
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    prepared_of,
    read_output,
    varied_records,
)
from tests.support.records import frames_of

RECORDS = varied_records(400, seed=7)


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        part = RECORDS[number * 100 : (number + 1) * 100]
        (folder / str(number)).write_bytes(frames_of(part))
    return folder


@pytest.mark.parametrize("group_size", [1, 5])
@pytest.mark.parametrize("compression", ["zstd:3", "brotli:4", "snappy"])
def test_both_writers_keep_the_same_records(
    tmp_path: pathlib.Path, inputs: pathlib.Path, group_size: int, compression: str
):
    found = {}
    for name in get_args(Writer):
        writer = WriterOptions(
            group_size=group_size, compression=compression, writer=name
        )
        output = tmp_path / name
        convert(job_of(inputs, output, plan=("num_shards", 3), writer=writer))
        assert read_output(output) == RECORDS
        dataset = loader.open(output)
        assert list(dataset.read(range(len(RECORDS)))) == RECORDS
        shards = sorted(map(str, output.glob("*.array_record-*")))
        with grain.sources.ArrayRecordDataSource(shards) as source:
            order = [*range(len(RECORDS))]
            assert [bytes(each) for each in source.__getitems__(order)] == RECORDS
        found[name] = open_manifest(str(output)).splits["train"]
    official, own = found["official"], found["gristmill"]
    assert own.records_digest == official.records_digest
    assert official.writer_options == (
        f"group_size:{group_size},{compression},max_parallelism:1"
    )
    assert f"group_size:{group_size},{compression},gristmill:1," in own.writer_options


def test_the_same_bytes_whatever_made_them(
    tmp_path: pathlib.Path, inputs: pathlib.Path
):
    made = []
    for name in ("a", "b"):
        options = WriterOptions(writer="gristmill")
        job = job_of(inputs, tmp_path / name, plan=("num_shards", 5), writer=options)
        prepared = prepared_of(job)
        tasks = list(shard_tasks(prepared))
        convert(job, tasks=tasks if name == "a" else tasks[::-1])
        made.append(contents(tmp_path / name))
    assert made[0] == made[1]


def test_a_job_of_older_releases_is_one_of_the_official_writer(
    tmp_path: pathlib.Path, inputs: pathlib.Path
):
    options = prepared_of(job_of(inputs, tmp_path / "out")).job.options()
    assert options["writer"] == {"group_size": 1, "compression": "zstd:3"}


def test_other_versions_of_a_codec_do_not_finish_a_job(
    tmp_path: pathlib.Path, inputs: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    job = job_of(
        inputs,
        tmp_path / "out",
        plan=("num_shards", 4),
        writer=WriterOptions(writer="gristmill"),
    )
    prepared = prepared_of(job)
    versions = prepared.job.writer.versions
    tasks = list(shard_tasks(prepared))
    make_shard(tasks[0])
    monkeypatch.setattr(file_writer, "codec_version", lambda _: "zstd-1.4.0")
    # Another worker of the same run, and another run.
    for attempt in (lambda: make_shard(tasks[1]), lambda: begin_job(job)):
        with pytest.raises(JobChangedError) as caught:
            attempt()
        assert versions in str(caught.value)
        assert "gristmill:1,zstd-1.4.0" in str(caught.value)
    assert len(list((tmp_path / "out").glob("*.array_record-*"))) == 1
    monkeypatch.undo()
    convert(job)
    assert read_output(tmp_path / "out") == RECORDS
