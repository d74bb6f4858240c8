"""What a submission looks up about its inputs: a few requests, whatever there is."""

from __future__ import annotations

import pytest

from gristmill.pipelines.dataflow.buckets import Use
from gristmill.pipelines.dataflow.clients import storage_client
from gristmill.pipelines.dataflow.job_inputs import (
    Listed,
    ListedFile,
    Shards,
    list_inputs,
    shards_of,
)
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support.cloud import Cloud, running

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


@pytest.mark.parametrize(
    ("kind", "value", "whole", "shards"),
    [
        ("match_shards", None, True, Shards(2, 700, 1000)),
        ("match_shards", None, False, Shards(2, 700, None)),
        ("shard_bytes", 500, True, Shards(2, 500, 1000)),
        ("shard_bytes", 5000, False, Shards(1, 5000, None)),
        ("num_shards", 4, True, Shards(4, 250, 1000)),
    ],
)
def test_the_shards_of_a_job(kind, value, whole, shards):
    files = [ListedFile(f"gs://raw/{size}", size) for size in (300, 700)]
    listed, plan = Listed(files, whole, []), PlanOptions(kind=kind, value=value)
    assert shards_of(listed, plan) == shards
    twice = shards_of(listed, plan, copies=2)
    assert twice.largest_bytes == 2 * shards.largest_bytes


def test_shards_where_nothing_was_listed():
    assert shards_of(Listed([], False, []), PlanOptions()).number == 0
