"""Shards of one row group, made in one pass: the same bytes, and it is read once."""

from __future__ import annotations

import pathlib

import pyarrow.parquet as pq
import pytest

from gristmill.dataset.metadata import layout
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    make_shard,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.planning.shard_plan import PlanOptions, plan_by_bytes
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.table_records import joined_shards
from tests.support.conversion import contents, convert, job_of, prepared_of
from tests.support.parquet_files import flip, page_offset, some_table

SHARDS = 8


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file of a small row group, a large one, and a small one."""
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    table = some_table(5000)
    options = {"write_page_checksum": True, "data_page_size": 1024}
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        for begin, end in ((0, 300), (300, 4500), (4500, 5000)):
            writer.write_table(table.slice(begin, end - begin), row_group_size=end)
    return path


def one_by_one(job: ConversionJob) -> PreparedJob:
    """Converts without any pass over more than a shard."""
    prepared = prepared_of(job)
    (first,) = {task._replace(shard=0) for task in shard_tasks(prepared)}
    shards = range(prepared.plan.shards)
    results = [make_shard(first._replace(shard=shard)) for shard in shards]
    commit_shards([job], results)
    return prepared


@pytest.mark.parametrize("damaged", [False, True])
def test_the_same_bytes_as_one_by_one(source, tmp_path, damaged):
    options, plan = {}, ("num_shards", SHARDS)
    if damaged:
        flip(source, page_offset(source, 1, 0))
        options = {"on_corrupt": "skip"}
    alone = one_by_one(job_of(source, tmp_path / "alone", plan=plan, **options))
    assert alone.plan.shards > len(alone.plan.pass_begins) > 0
    job = job_of(source, tmp_path / "together", plan=plan, **options)
    prepared = prepared_of(job)
    tasks = list(shard_tasks(prepared))
    assert len(tasks) == len(alone.plan.pass_begins) <= 3
    if not damaged:
        # Killed in the middle of a pass; then some of its shards are lost, too.
        made = [shard for task in tasks for shard in make_shards(task)]
        for result in made[1], made[4]:
            path = layout.index_path(result.report.path)
            (tmp_path / "together" / path).unlink()
        again = [shard for task in tasks for shard in make_shards(task)]
        assert sum(not shard.resumed for shard in again) == 2
    convert(job)
    assert contents(tmp_path / "together") == contents(tmp_path / "alone")
    assert bool(list(tmp_path.glob("together/errors/*"))) == damaged


def test_only_cuts_within_a_large_row_group_join_shards(source):
    files = find_inputs([str(source)])
    for shards, joined in ((2, [0]), (20, [14, 15, 16, 17, 18])):
        options = PlanOptions(kind="num_shards", value=shards)
        plan = plan_by_bytes(options, files.sizes, files.splittable)
        assert joined_shards(files, plan).sum() in joined
