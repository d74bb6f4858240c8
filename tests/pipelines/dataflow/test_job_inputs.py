"""What a submission looks up about its inputs: a few requests, whatever there is."""

from __future__ import annotations

import gzip
import pathlib
import zlib

import numpy as np
import pyarrow as pa
import pytest

from gristmill.pipelines.dataflow.buckets import Use
from gristmill.pipelines.dataflow.clients import storage_client
from gristmill.pipelines.dataflow.job_inputs import (
    Listed,
    ListedFile,
    ShardSizes,
    list_inputs,
    shard_sizes,
)
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support.cloud import Cloud, running
from tests.support.parquet_files import write_parquet
from tests.support.records import write_array_records

NAMES = ("a/1", "a/2.gz", "a/_SUCCESS", "a/deep/3", "a/[1]", "b/c/d")


@pytest.fixture(scope="module")
def cloud():
    with running() as services:
        for name in NAMES:
            services.storage.objects.put("raw", name, b"0123456789")
        yield services


def matched(*paths: str, what: str = "input", **options) -> Listed:
    client = storage_client("p", anonymous=True)
    uses = [Use(what, path, frozenset()) for path in paths]
    return list_inputs(uses, client=client, **options)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("gs://raw/a/1", ["a/1"]),
        ("gs://raw/a/[1]", ["a/[1]"]),  # A plain name wins.
        ("gs://raw/a/[12]", ["a/1"]),
        ("gs://raw/a", ["a/1", "a/2.gz", "a/[1]"]),
        ("gs://raw/a/", ["a/1", "a/2.gz", "a/[1]"]),
        ("gs://raw/a/*", ["a/1", "a/2.gz", "a/[1]", "a/_SUCCESS"]),
        ("gs://raw/a/**", ["a/1", "a/2.gz", "a/[1]", "a/_SUCCESS", "a/deep/3"]),
        ("gs://raw/*/deep/?", ["a/deep/3"]),
    ],
)
def test_what_matches(cloud: Cloud, path, names):
    for what in ("input", "files"):
        found = matched(path, what=what)
        assert [file.path for file in found.files] == [f"gs://raw/{n}" for n in names]
        assert {file.size_bytes for file in found.files} == {10}
        assert (found.whole, found.notes) == (True, [])
    assert matched(path, what="output").files == []


def test_listing_ends_in_time(cloud: Cloud):
    cloud.storage.objects.page_size = 2
    before = cloud.storage.requests["list"]
    found = matched("gs://raw/**/d", seconds=0)
    assert not found.whole
    assert "whether a file matches gs://raw/**/d was not checked" in found.notes[0]
    assert "2 objects with the prefix gs://raw/" in found.notes[0]
    found = matched("gs://raw/a/**", seconds=0)
    assert (found.whole, len(found.files), found.notes) == (False, 2, [])
    assert cloud.storage.requests["list"] == before + 4


def listed(*sizes: int, whole: bool = True) -> Listed:
    files = [ListedFile(f"gs://raw/sizes/{size}", size) for size in sizes]
    return Listed(files, whole, [])


@pytest.mark.parametrize(
    ("kind", "value", "whole", "sizes"),
    [
        ("match_shards", None, True, ShardSizes(700, 1000)),
        ("match_shards", None, False, ShardSizes(700, None)),
        ("shard_bytes", 500, True, ShardSizes(500, 1000)),
        ("shard_bytes", 5000, True, ShardSizes(1000, 1000)),
        ("num_shards", 4, True, ShardSizes(250, 1000)),
        ("num_shards", 4, False, ShardSizes(250, None)),
    ],
)
def test_sizes_of_shards(cloud: Cloud, kind, value, whole, sizes):
    cloud.storage.objects.put("raw", "sizes/700", bytes(700))
    plan = PlanOptions(kind=kind, value=value)
    assert shard_sizes(listed(300, 700, whole=whole), plan) == sizes
    twice = ShardSizes(*(size and 2 * size for size in sizes))
    assert shard_sizes(listed(300, 700, whole=whole), plan, copies=2) == twice


def test_sizes_of_shards_where_nothing_was_listed():
    assert shard_sizes(listed(), PlanOptions(value=5)) == ShardSizes(5, None)
    nothing = shard_sizes(listed(), PlanOptions(kind="match_shards", value=None))
    assert nothing == ShardSizes(None, None)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_compressed_inputs_are_counted_as_they_are_read(cloud: Cloud, compress):
    data = compress(bytes(100_000))
    cloud.storage.objects.put("raw", f"sizes/{len(data)}", data)
    plan = PlanOptions(kind="match_shards", value=None)
    found = shard_sizes(listed(len(data), 50), plan)
    assert found.largest_bytes == pytest.approx(100_000, rel=0.01)
    cloud.storage.objects.put("raw", f"sizes/{len(data)}", data[:14] + b"\0" * 99)
    assert shard_sizes(listed(len(data), 50), plan).largest_bytes >= len(data)


def test_array_records_are_counted_as_they_are_decoded(
    cloud: Cloud, tmp_path: pathlib.Path
) -> None:
    write_array_records(tmp_path / "a", [bytes(10_000)] * 300, options="group_size:9")
    data = (tmp_path / "a").read_bytes()
    cloud.storage.objects.put("raw", f"sizes/{len(data)}", data)
    plan = PlanOptions(kind="match_shards", value=None)
    found = shard_sizes(listed(len(data), 50), plan)
    assert found.largest_bytes == pytest.approx(3_000_000, rel=0.01)
    damaged = data[:-65_536] + bytes(65_536)
    cloud.storage.objects.put("raw", f"sizes/{len(data)}", damaged)
    assert shard_sizes(listed(len(data), 50), plan).largest_bytes == len(data)


def test_parquet_is_counted_as_it_is_decoded(cloud: Cloud, tmp_path: pathlib.Path):
    # The footer tells a few hundred bytes: all values are the same.
    rows = 2_000_000
    table = pa.table({"number": pa.array(np.zeros(rows, np.int64))})
    data = write_parquet(tmp_path / "a", table, data_page_size=1 << 20).read_bytes()
    assert len(data) < 20_000
    cloud.storage.objects.put("raw", f"sizes/{len(data)}", data)
    plan = PlanOptions(kind="num_shards", value=2)
    found = shard_sizes(listed(len(data)), plan)
    assert found.total_bytes == pytest.approx(8 * rows, rel=0.1)
    assert found.largest_bytes == pytest.approx(4 * rows, rel=0.1)
    # What cannot be read is for the job to say.
    cloud.storage.objects.put("raw", f"sizes/{len(data) - 20}", data[:-20])
    assert shard_sizes(listed(len(data) - 20), plan).total_bytes == len(data) - 20
