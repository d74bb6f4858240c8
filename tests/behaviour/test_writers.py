"""Conversions with either writer: the same records, for every reader.

Covers: dataset/arrayrecord/versions.py, transforms/jobs/settle_writer.py.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, get_args

import apache_beam as beam
import grain
import pytest

from gristmill import loader
from gristmill.dataset.arrayrecord import versions
from gristmill.dataset.arrayrecord.versions import with_versions
from gristmill.dataset.arrayrecord.writer_options import Writer, WriterOptions
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.transforms import WriteArrayRecords
from gristmill.transforms.conversion.begin_job import (
    begin_job,
    plan_job,
    take_output,
)
from gristmill.transforms.conversion.job_inputs import list_inputs
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
        job = job_of(inputs, tmp_path / name, plan=("num_shards", 5))
        prepared = prepared_of(job)
        tasks = list(shard_tasks(prepared))
        convert(job, tasks=tasks if name == "a" else tasks[::-1])
        made.append(contents(tmp_path / name))
    assert made[0] == made[1]


def older_release(output: pathlib.Path) -> None:
    """Makes of a job that was begun with the official writer one of an older release.

    That knew of no other.
    """
    path = output / "index" / "data-train.job.json"
    document = json.loads(path.read_bytes())
    del document["job"]["writer"]["writer"], document["job"]["writer"]["versions"]
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("wanted", [None, "official"])
def test_a_job_of_an_older_release_goes_on_with_its_writer(
    tmp_path: pathlib.Path, inputs: pathlib.Path, wanted: Writer | None
):
    output = tmp_path / "out"
    plan = ("num_shards", 4)
    old = job_of(inputs, output, plan=plan, writer=WriterOptions(writer="official"))
    prepared = prepared_of(old)
    assert prepared.job.options()["writer"] == {
        "group_size": 1,
        "compression": "zstd:3",
    }
    make_shard(next(iter(shard_tasks(prepared))))
    older_release(output)
    job = dataclasses.replace(old, writer=WriterOptions(writer=wanted))
    for writer, told in (
        (WriterOptions(writer="gristmill"), "writer was 'official', is 'gristmill'"),
        (WriterOptions(group_size=2, writer=wanted), "group_size was 1, is 2"),
    ):
        with pytest.raises(JobChangedError, match=f"writer.{told}"):
            begin_job(dataclasses.replace(old, writer=writer))
    [shard] = output.glob("*.array_record-*")
    made = shard.stat().st_mtime_ns
    convert(job)
    assert shard.stat().st_mtime_ns == made
    assert read_output(output) == RECORDS
    split = open_manifest(str(output)).splits["train"]
    assert split.writer_options == "group_size:1,zstd:3,max_parallelism:1"
    # And so does the finished one, by whatever is installed later.
    older_release(output)
    assert begin_job(job).committed is not None
    # To start over is to write anew.
    begun = begin_job(dataclasses.replace(job, writer=WriterOptions()), overwrite=True)
    assert begun.prepared.job.writer.writer == "gristmill"


def test_other_versions_of_a_codec_do_not_finish_a_job(
    tmp_path: pathlib.Path, inputs: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    job = job_of(inputs, tmp_path / "out", plan=("num_shards", 4))
    prepared = prepared_of(job)
    assert prepared.job.writer.writer == "gristmill"
    planned = prepared.job.writer.versions
    tasks = list(shard_tasks(prepared))
    make_shard(tasks[0])
    monkeypatch.setattr(versions, "codec_version", lambda _: "zstd-1.4.0")
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
    monkeypatch.setattr(versions, "codec_version", lambda _: "zstd-1.4.0")
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
    writer = WriterOptions(writer="official" if older == "release" else None)
    old = job_of(inputs, output, plan=("num_shards", 4), writer=writer)
    with monkeypatch.context() as patched:
        patched.setattr(versions, "codec_version", lambda _: "zstd-1.4.0")
        for task in list(shard_tasks(prepared_of(old)))[: made == "one"]:
            make_shard(task)
        if made == "all":
            convert(old)
    if older == "release":
        older_release(output)
    job = dataclasses.replace(old, writer=WriterOptions())
    if not same:
        (inputs / "4").write_bytes(frames_of([b"more"]))
    # As the drop-in pipelines begin.
    prepared = plan_job(job, list_inputs(job), overwrite="changed")
    taken = take_output(prepared, overwrite="changed")
    if same and (made == "all" or older == "release"):
        assert taken.prepared.fingerprint == prepared.fingerprint
        assert (taken.committed is not None) == (made == "all")
        return
    assert taken.prepared.job.writer == with_versions(WriterOptions())
    # What is to be replaced in no case.
    if made == "none" and not same:
        convert(job)
        assert read_output(output) == [*RECORDS, b"more"]


def test_a_write_that_replaces_an_unfinished_one_takes_nothing_of_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out"

    def write(records: list[bytes]) -> None:
        with beam.Pipeline() as pipeline:
            pcollection = pipeline | beam.Create(records)
            _ = pcollection | WriteArrayRecords(output, num_shards=2)

    with monkeypatch.context() as patched:
        patched.setattr(versions, "codec_version", lambda _: "zstd-1.4.0")
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


def test_a_write_of_an_older_release_goes_on_with_its_writer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out"

    def write(**options: Any) -> None:
        with beam.Pipeline() as pipeline:
            records = pipeline | beam.Create(RECORDS)
            _ = records | WriteArrayRecords(output, num_shards=2, **options)

    official = WriterOptions(writer="official")
    write(writer=official)
    split = open_manifest(str(output)).splits["train"]
    assert split.source["options"]["writer"] == {
        "group_size": 1,
        "compression": "zstd:3",
    }
    made = contents(output)
    (output / "dataset.json").unlink()
    [shard, _] = sorted(output.glob("*.array_record-*"))
    shard.unlink()
    options = {"options": split.source["options"]}
    marker = output / "index" / "out-train.write.json"
    marker.write_text(json.dumps(options | {"fingerprint": split.source["write"]}))
    write()
    assert contents(output) == made
    write()  # Nothing is to do.
    assert contents(output) == made
    with pytest.raises(JobChangedError, match="writer"):
        write(writer=WriterOptions(writer="gristmill"))
    monkeypatch.setattr(versions, "codec_version", lambda _: "zstd-1.4.0")
    write(overwrite=True)
    split = open_manifest(str(output)).splits["train"]
    assert split.writer_options == "group_size:1,zstd:3,gristmill:1,zstd-1.4.0"
    monkeypatch.undo()
    write()  # Made by another version, but nothing is to do.


@pytest.mark.parametrize("wanted", [None, "gristmill", "official"])
def test_the_writer_without_the_compiled_hash(
    tmp_path: pathlib.Path,
    inputs: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: Writer | None,
):
    writer = WriterOptions(writer=wanted)
    begun = prepared_of(job_of(inputs, tmp_path / "begun", writer=writer))
    monkeypatch.setattr(versions, "is_compiled", lambda: False)
    job = job_of(inputs, tmp_path / "out", writer=writer)
    assert prepared_of(job).job.writer.writer == (wanted or "official")
    # A job that was planned elsewhere keeps its writer.
    again = prepared_of(begun.job)
    assert again.job.writer == begun.job.writer
    same = prepared_of(dataclasses.replace(begun.job, writer=writer))
    assert same.fingerprint == again.fingerprint
