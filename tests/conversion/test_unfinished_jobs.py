"""Jobs beside others of their split that are not finished: all can go on."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from gristmill.dataset.base.errors import (
    StorageChangedError,
    UserFunctionError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.verify import verify
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    PreparedJob,
    ShardNames,
)
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support.conversion import convert, job_of
from tests.support.records import frames_of, text_records
from tests.support.watched import at_storage

# A function that fails, but not at the first records, on which it is tried.
FAILS = "binascii:unhexlify"
RECORDS = [b"%04x" % number for number in range(10)] + text_records(60)


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "in.tfrecord"
    path.write_bytes(frames_of(RECORDS))
    return path


def with_shards(job: ConversionJob, shards: int) -> ConversionJob:
    plan = PlanOptions(kind="num_shards", value=shards)
    return dataclasses.replace(job, plan=plan)


def assert_whole(output: str, *, shards: int, described: int = 3) -> None:
    """The output is a dataset with these shards, and nothing else is there."""
    found = verify(output, workers=1)
    assert found.findings == ()
    split = open_manifest(output).splits["train"]
    assert (split.shards, split.records) == (shards, len(RECORDS))
    assert len(storage_for(output).list(output)) == shards + 1
    index = storage_for(output).list(layout.join(output, layout.INDEX_DIR))
    assert len(index) == shards + described


@pytest.mark.one_in(3)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("beam_options", [None, ["--runner=FnApiRunner"]])
def test_a_function_that_fails_and_the_corrected_command(
    source, output: str, overwrite: bool, beam_options
):
    job = job_of(source, output, plan=("num_shards", 3), map=FAILS)
    options = {"beam_options": beam_options}
    with pytest.raises(UserFunctionError):
        run_conversion([job], overwrite=overwrite, **options)
    outcome = run_conversion([with_shards(dataclasses.replace(job, map=None), 2)])
    (note,) = outcome.notes
    clean(output, unfinished=True)
    assert_whole(output, shards=2)
    assert "another conversion of split train is not finished" in note
    assert "map was 'binascii:unhexlify', is None" in note
    assert "the plan was 3 shards, is 2 shards" in note


def test_one_that_has_finished_a_shard_goes_on(source, output: str):
    job = job_of(source, output, plan=("num_shards", 3))
    task = next(shard_tasks(begin_job(job).prepared))
    made = make_shard(task)
    (note,) = begin_job(with_shards(job, 2)).notes
    assert "the plan was 3 shards, is 2 shards" in note
    assert make_shard(task) == made._replace(resumed=True)
    convert(job)
    clean(output, unfinished=True)
    assert_whole(output, shards=3)
    assert open_manifest(output).splits["train"].write == ""


def test_of_two_that_begin_at_once_one_has_the_plain_names(
    source, output: str, monkeypatch
):
    """Both have found that nobody has them, and both can go on."""
    jobs = [job_of(source, output, plan=("num_shards", n)) for n in (3, 2)]
    first: list[PreparedJob] = []
    at_storage(
        monkeypatch,
        "write",
        "job.json",
        lambda: first.append(begin_job(jobs[0]).prepared),
    )
    second = begin_job(jobs[1]).prepared
    prepared = [*first, second]
    marks = [one.write.mark for one in prepared]
    assert marks == ["", second.write.id]
    # Either finds its own when it is begun again.
    assert [begin_job(job).prepared.write.key for job in jobs] == [
        one.write.key for one in prepared
    ]
    results = [[make_shard(t) for t in shard_tasks(one)] for one in prepared]
    commit_shards(jobs[1:], results[1])
    with pytest.raises(StorageChangedError, match="has changed the split while this"):
        commit_shards(jobs[:1], results[0])
    clean(output, unfinished=True)
    assert_whole(output, shards=2)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "names",
    [
        ShardNames(kind="beam", prefix="part", suffix=".ar"),
        ShardNames(kind="inputs", suffix=".ar"),
    ],
)
def test_shards_of_other_names_go_with_what_is_given_up(
    source, output: str, names: ShardNames, first: bool
):
    job = job_of(source, output, plan=("num_shards", 2))
    if not first:
        convert(job)
    other = job_of(source, output, plan=("match_shards", None))
    other = dataclasses.replace(other, names=names)
    for task in shard_tasks(begin_job(other, overwrite=not first).prepared):
        make_shard(task)
    mine = layout.join(output, "notes.ar")
    storage_for(output).write(mine, b"mine")
    if first:
        convert(job)
    clean(output, unfinished=True)
    assert storage_for(output).read(mine) == b"mine"
    storage_for(output).delete(mine)
    assert_whole(output, shards=2)


@pytest.mark.parametrize("described", [b"", b"{}", None])
def test_a_stranger_stays_beside_what_nobody_can_read(
    source, output: str, described: bytes | None
):
    """Only a job of its own can have made a shard without an index."""
    storage = storage_for(output)
    mine = layout.join(output, layout.shard_name("data", "train", 0, 9))
    place = layout.join(output, layout.job_path("data", "train"))
    if described is not None:
        storage.write(place, described)
    convert(job_of(source, output, plan=("num_shards", 2)), overwrite=True)
    storage.write(mine, b"mine")
    clean(output, unfinished=True)
    assert storage.read(mine) == b"mine"
