"""Datasets that are joined to one: records, digests, order, places and copies."""

import itertools
import pathlib
import time

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    NotADatasetError,
)
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.datasets import convert
from tests.support.records import text_records, write_array_records

FILES = [text_records(30, seed=1), [], text_records(21, seed=2)]
WEEK = [text_records(17, seed=3), text_records(13, seed=4)]
RECORDS = list(itertools.chain(*FILES, *WEEK))


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> str:
    """A dataset with the splits train and week2."""
    folder = tmp_path_factory.mktemp("first")
    convert(folder, FILES, group_size=4)
    return convert(folder, WEEK, split="week2")


@pytest.fixture(scope="module")
def second(tmp_path_factory) -> str:
    return convert(tmp_path_factory.mktemp("second"), WEEK)


@pytest.fixture(params=["splits", "datasets", "same split"])
def joined(request, first, second) -> loader.Dataset:
    if request.param == "splits":
        return loader.open(first, split=["train", "week2"])
    split = "train" if request.param == "same split" else ["train", "train"]
    return loader.open([first, second], split=split)


def test_records_follow_each_other(joined) -> None:
    assert (len(joined), joined.facts.shards) == (len(RECORDS), 5)
    assert joined[:] == RECORDS
    wanted = [80, 0, 51, 50, 17, 51]
    assert joined.read(wanted) == [RECORDS[number] for number in wanted]
    shards, numbers = joined.find([0, 30, 51, 68, 80])
    assert shards.tolist() == [0, 2, 3, 4, 4]
    assert numbers.tolist() == [0, 0, 0, 0, 12]
    assert [joined.shard(n).first_record for n in range(5)] == [0, 30, 30, 51, 68]
    assert "split train + " in repr(joined)
    assert "81 records in 5 shards" in repr(joined)
    assert joined.stored.offset_bytes(52) == loader.open(
        joined.stored.parts[1].path, joined.stored.parts[1].split
    ).stored.offset_bytes(1)


def test_digests_are_those_of_one_dataset(joined, first, second, tmp_path) -> None:
    whole = loader.open(convert(tmp_path, FILES + WEEK))
    assert (joined.facts.records_digest, joined.facts.order_digest) == (
        whole.facts.records_digest,
        whole.facts.order_digest,
    )
    later = loader.global_batches(loader.open(first, "train"), batch_size=8)
    later = later.then(joined, step=4)
    assert later.find(20, stop_epoch=9)  # Train is the beginning of both.
    later = loader.global_batches(loader.open(second), batch_size=8)
    later = later.then(joined, step=2)
    with pytest.raises(InputError, match="other numbers in an earlier phase"):
        later.find(20, stop_epoch=9)
    batches = [loader.global_batches(data, batch_size=8) for data in (joined, whole)]
    assert batches[0].read(7) == batches[1].read(7)
    assert joined.facts.edition is None
    state = batches[0].feed(host=(0, 1), start_step=3).get_state()
    with batches[0].feed(host=(0, 1)) as feed:
        feed.set_state(state)
        assert next(feed) == batches[1].read(3)


def test_a_record_is_traced_to_its_own_dataset(joined) -> None:
    batches = loader.global_batches(joined, batch_size=len(RECORDS))
    paths = {part.path for part in joined.stored.parts}
    seen = set()
    for row in range(0, len(RECORDS), 5):
        place = batches.locate(0, row)
        record = RECORDS[place.record]
        assert batches.read(0, slice(row, row + 1)) == [record]
        with open(place.source_path, "rb") as file:
            file.seek(place.source_offset_bytes + 12)
            assert file.read(len(record)) == record
        assert place.shard.startswith(place.dataset)
        seen.add(place.dataset)
        assert batches.find(place.record, stop_epoch=1) == [(0, 0, row)]
    assert seen == paths


def test_files_and_datasets_are_joined(first, tmp_path) -> None:
    path = tmp_path / "more.array_record"
    write_array_records(path, WEEK[0])
    joined = loader.open([first, path], ["train", None])
    assert joined[:] == list(itertools.chain(*FILES, WEEK[0]))
    assert joined.facts.records_digest is None
    assert loader.open([path])[:] == WEEK[0]
    assert loader.open([first], "week2").facts.split == "week2"


def test_damage_is_reported_with_its_own_dataset(first, tmp_path) -> None:
    second = convert(tmp_path, WEEK)
    joined = loader.open([first, second], "train")
    path = pathlib.Path(joined.shard(4).path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match=path.name):
        joined[68:81]
    assert joined[51:68] == WEEK[0]


def test_what_cannot_be_joined_is_refused(first, second, tmp_path) -> None:
    with pytest.raises(InputError, match="there twice"):
        loader.open(first, split=["train", "week2", "train"])
    with pytest.raises(InputError, match="not as many as the datasets"):
        loader.open([first, second], split=["train"])
    with pytest.raises(InputError, match="not as many as the datasets"):
        loader.open(first, split=[])
    with pytest.raises(InputError, match="no split given"):
        loader.open([first, second])
    with pytest.raises(InputError, match="no such split"):
        loader.open([second, first], split=["train", "week3"])
    with pytest.raises(NotADatasetError):
        loader.open([first, tmp_path / "nothing"], split=["train", "train"])


@pytest.mark.slow
def test_datasets_in_buckets_are_read_together(
    first, second, tmp_path, monkeypatch
) -> None:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, first, "first")
        upload(server, second, "second")
        places = ["gs://bucket/first", "gs://bucket/second"]
        with pytest.raises(InputError, match="not joined with others"):
            loader.open([places[0], second], "train")
        joined = loader.open(places, "train", cache_dir=tmp_path, cache_bytes=1_000_000)
        wanted = np.arange(len(RECORDS))[::-3]
        assert joined.read(wanted) == [RECORDS[n] for n in wanted.tolist()]
        assert joined.facts.requests.requests > 0
        # Both are copied, and read from their copies.
        while not joined.facts.cache.hits:
            assert joined.read(wanted) == [RECORDS[n] for n in wanted.tolist()]
            time.sleep(0.01)
        # Copies that are damaged are fetched again.
        for copy in tmp_path.rglob("*"):
            if copy.is_file() and "index" not in copy.parts:
                copy.write_bytes(bytes(copy.stat().st_size))
        again = loader.open(places, "train", cache_dir=tmp_path, cache_bytes=1_000_000)
        assert again[:] == RECORDS
