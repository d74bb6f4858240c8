"""The writer of a job: its versions stay, and every reader finds the same records."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import apache_beam as beam
import grain
import pytest

from gristmill import loader
from gristmill.dataset.arrayrecord import chunk_encoder, shard_writer
from gristmill.dataset.arrayrecord.chunk_encoder import with_versions
from gristmill.dataset.arrayrecord.writer_options import ARRAY_RECORD, WriterOptions
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.transforms import WriteArrayRecords
from gristmill.transforms.conversion import begin_job as begin_job_module
from gristmill.transforms.conversion.begin_job import (
    begin_job,
    plan_job,
    take_output,
)
from gristmill.transforms.conversion.job_inputs import list_inputs
from gristmill.transforms.conversion.shard_tasks import make_shard, shard_tasks
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.prepared_job import DescriptionVersions
from gristmill.transforms.writing import begin_write
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    prepared_of,
    read_output,
    varied_records,
)
from tests.support.records import frames_of, write_array_records

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


def test_the_same_bytes_whatever_made_them(
    tmp_path: pathlib.Path, inputs: pathlib.Path
):
    made = []
    for name in ("a", "b"):
        job = job_of(inputs, tmp_path / name, plan=("num_shards", 5))
        prepared = prepared_of(job)
        tasks = list(shard_tasks(prepared))
        convert(job, tasks=tasks if name == "a" else tasks[::-1])
        made.append(contents(tmp_path / name))
    assert made[0] == made[1]


def begun_before(job: ConversionJob, *, named: bool) -> None:
    """Describes a job as an earlier release did that wrote with array_record.

    Args:
        job: The job.
        named: Whether that release had a name for the writer.
    """
    old = dataclasses.replace(job, writer=WriterOptions(versions=ARRAY_RECORD))
    prepared = plan_job(old, list_inputs(old))
    encoding = {"group_size": 1, "compression": "zstd:3"}
    assert prepared.job.options()["writer"] == encoding
    prepared.store(replaces=DescriptionVersions("", ""))
    path = pathlib.Path(job.output, "index", "data-train.job.json")
    document = json.loads(path.read_bytes())
    assert document["job"]["writer"] == encoding
    if named:
        document["job"]["writer"] |= {"writer": "official", "versions": ""}
        path.write_text(json.dumps(document))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("made", [True, False])
def test_a_job_begun_with_the_writer_of_array_record_is_refused(
    tmp_path: pathlib.Path, inputs: pathlib.Path, named: bool, made: bool
):
    output = tmp_path / "out"
    job = job_of(inputs, output, plan=("num_shards", 4))
    begun_before(job, named=named)
    shard = output / "data-train.array_record-00000-of-00004"
    if made:
        write_array_records(shard, RECORDS[:100])
    before = contents(output)
    with pytest.raises(JobChangedError, match="begun with the writer of") as caught:
        begin_job(job)
    assert "finish it with the release of gristmill that began it" in str(caught.value)
    assert contents(output) == before
    # The other cure, which takes nothing of it.
    convert(job, overwrite=True)
    assert read_output(output) == RECORDS
    split = open_manifest(str(output)).splits["train"]
    assert split.writer_options == with_versions(job.writer).described
    assert begin_job(job).committed is not None


def test_a_dataset_of_the_writer_of_array_record_stays_finished(
    tmp_path: pathlib.Path, inputs: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    job = job_of(inputs, tmp_path / "out", plan=("num_shards", 4))
    old = dataclasses.replace(job, writer=WriterOptions(versions=ARRAY_RECORD))
    with monkeypatch.context() as patched:
        for module in (begin_job_module, shard_writer):
            patched.setattr(module, "check_versions", lambda *_, **__: None)
        convert(old)
    assert begin_job(job).committed is not None


def test_other_versions_of_a_codec_do_not_finish_a_job(
    tmp_path: pathlib.Path, inputs: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    job = job_of(inputs, tmp_path / "out", plan=("num_shards", 4))
    prepared = prepared_of(job)
    planned = prepared.job.writer.versions
    tasks = list(shard_tasks(prepared))
    make_shard(tasks[0])
    monkeypatch.setattr(chunk_encoder, "codec_version", lambda _: "zstd-1.4.0")
    # Another worker of the same run, and another run.
    for attempt in (lambda: make_shard(tasks[1]), lambda: convert(job)):
        with pytest.raises(JobChangedError) as caught:
            attempt()
        assert planned in str(caught.value)
        assert "gristmill:1,zstd-1.4.0" in str(caught.value)
    assert len(list((tmp_path / "out").glob("*.array_record-*"))) == 1
    monkeypatch.undo()
    convert(job)
    assert read_output(tmp_path / "out") == RECORDS
    # Nothing is to do, so it does not matter what could do it.
    monkeypatch.setattr(chunk_encoder, "codec_version", lambda _: "zstd-1.4.0")
    assert begin_job(job).committed is not None


@pytest.mark.parametrize("older", ["release", "codec"])
@pytest.mark.parametrize("made", ["none", "one", "all"])
@pytest.mark.parametrize("same", [True, False])
def test_what_replaces_a_job_takes_nothing_of_it(
    tmp_path: pathlib.Path,
    inputs: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    older: str,
    made: str,
    same: bool,
):
    output = tmp_path / "out"
    name = ARRAY_RECORD if older == "release" else "gristmill:1,zstd-1.4.0"
    old = job_of(
        inputs,
        output,
        plan=("num_shards", 4),
        writer=WriterOptions(versions=name),
    )
    with monkeypatch.context() as patched:
        for module in (begin_job_module, shard_writer):
            patched.setattr(module, "check_versions", lambda *_, **__: None)
        for task in list(shard_tasks(prepared_of(old)))[: made == "one"]:
            make_shard(task)
        if made == "all":
            convert(old)
    job = dataclasses.replace(old, writer=WriterOptions())
    if not same:
        (inputs / "4").write_bytes(frames_of([b"more"]))
    # As the drop-in pipelines begin.
    prepared = plan_job(job, list_inputs(job), overwrite="changed")
    taken = take_output(prepared, overwrite="changed")
    if same and made == "all":
        assert taken.prepared.fingerprint == prepared.fingerprint
        assert (taken.committed is not None) == (made == "all")
        return
    assert taken.prepared.job.writer == with_versions(WriterOptions())
    # What is to be replaced in no case.
    if made == "none" and not same:
        convert(job)
        assert read_output(output) == [*RECORDS, b"more"]


@pytest.mark.slow
def test_a_write_that_replaces_an_unfinished_one_takes_nothing_of_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out"

    def write(records: list[bytes]) -> None:
        with beam.Pipeline() as pipeline:
            pcollection = pipeline | beam.Create(records)
            _ = pcollection | WriteArrayRecords(output, num_shards=2)

    with monkeypatch.context() as patched:
        patched.setattr(chunk_encoder, "codec_version", lambda _: "zstd-1.4.0")
        write(RECORDS)
    source = open_manifest(str(output)).splits["train"].source
    for path in (output / "dataset.json", *output.glob("*.array_record-*")):
        path.unlink()
    marker = output / "index" / "out-train.write.json"
    fields = {"options": source["options"], "fingerprint": source["write"]}
    marker.write_text(json.dumps(fields))
    with pytest.raises(JobChangedError, match=r"zstd-1\.4\.0"):
        write(RECORDS)
    write(RECORDS[:50])
    split = open_manifest(str(output)).splits["train"]
    assert split.source["options"]["writer"]["versions"] == (
        with_versions(WriterOptions()).versions
    )


@pytest.mark.slow
def test_a_write_begun_with_the_writer_of_array_record_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out"

    def write(**options: Any) -> None:
        with beam.Pipeline() as pipeline:
            records = pipeline | beam.Create(RECORDS)
            _ = records | WriteArrayRecords(output, num_shards=2, **options)

    with monkeypatch.context() as patched:
        for module in (begin_write, shard_writer):
            patched.setattr(module, "check_versions", lambda *_, **__: None)
        write(writer=WriterOptions(versions=ARRAY_RECORD))
    split = open_manifest(str(output)).splits["train"]
    encoding = {"group_size": 1, "compression": "zstd:3"}
    assert split.source["options"]["writer"] == encoding
    made = contents(output)
    write()  # Nothing is to do.
    assert contents(output) == made
    (output / "dataset.json").unlink()
    [shard, _] = sorted(output.glob("*.array_record-*"))
    shard.unlink()
    options = {"options": split.source["options"]}
    marker = output / "index" / "out-train.write.json"
    marker.write_text(json.dumps(options | {"fingerprint": split.source["write"]}))
    with pytest.raises(JobChangedError, match="begun with the writer of array_record"):
        write()
    write(overwrite=True)
    split = open_manifest(str(output)).splits["train"]
    assert split.writer_options == with_versions(WriterOptions()).described
    assert sorted(read_output(output)) == sorted(RECORDS)
    write()  # Nothing is to do.
