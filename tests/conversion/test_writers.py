"""The writer of a job: its versions stay, and every reader finds the same records."""

from __future__ import annotations

import dataclasses
import pathlib

import grain
import pytest

from gristmill import loader
from gristmill.dataset.arrayrecord import shard_writer
from gristmill.dataset.arrayrecord.file_writer import with_versions
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.transforms.conversion import take_output as take_output_module
from gristmill.transforms.conversion.begin import list_inputs, plan_job
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from gristmill.transforms.conversion.take_output import take_output
from tests.support.conversion import (
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
def test_every_reader_finds_the_same_records(
    tmp_path: pathlib.Path, inputs: pathlib.Path, group_size: int, compression: str
):
    writer = WriterOptions(group_size=group_size, compression=compression)
    output = tmp_path / "out"
    convert(job_of(inputs, output, plan=("num_shards", 3), writer=writer))
    assert read_output(output) == RECORDS
    dataset = loader.open(output)
    assert list(dataset.read(range(len(RECORDS)))) == RECORDS
    shards = sorted(map(str, output.glob("*.array_record-*")))
    with grain.sources.ArrayRecordDataSource(shards) as source:
        order = [*range(len(RECORDS))]
        assert [bytes(each) for each in source.__getitems__(order)] == RECORDS
    split = open_manifest(str(output)).splits["train"]
    expected = f"group_size:{group_size},{compression},gristmill:1,"
    assert expected in split.writer_options


@pytest.mark.parametrize("made", ["none", "one", "all"])
@pytest.mark.parametrize("same", [True, False])
def test_what_replaces_a_job_takes_nothing_of_it(
    tmp_path: pathlib.Path,
    inputs: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    made: str,
    same: bool,
):
    output = tmp_path / "out"
    old = job_of(
        inputs,
        output,
        plan=("num_shards", 4),
        writer=WriterOptions(versions="gristmill:1,zstd-1.4.0"),
    )
    with monkeypatch.context() as patched:
        for module in (take_output_module, shard_writer):
            patched.setattr(module, "check_versions", lambda *_, **__: None)
        for task in list(shard_tasks(prepared_of(old)))[: made == "one"]:
            make_shard(task)
        if made == "all":
            convert(old)
    job = dataclasses.replace(old, writer=WriterOptions())
    if not same:
        (inputs / "4").write_bytes(frames_of([b"more"]))
    # As the drop-in pipelines begin.
    prepared = plan_job(job, list_inputs(job))
    taken = take_output(prepared, overwrite="changed")
    if same and made == "all":
        assert taken.prepared.job.writer == old.writer
        assert taken.committed is not None
        return
    assert taken.prepared.job.writer == with_versions(WriterOptions())
    # What is to be replaced in no case.
    if made == "none" and not same:
        convert(job)
        assert read_output(output) == [*RECORDS, b"more"]
