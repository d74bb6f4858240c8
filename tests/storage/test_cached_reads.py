"""Reading a bucket through a cache of shards, by one process and several."""

import contextlib
import gc
import itertools
import logging
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import CorruptShardError, StorageError, open_manifest
from gristmill.loader import ReadOptions
from gristmill.loader.remote.read_options import CacheCounts
from tests.servers.buckets import upload
from tests.storage.test_read_bucket import FILES, RECORDS
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.waiting import until
from tests.support.watched import watched

ORDER = np.random.default_rng(3).permutation(len(RECORDS)).tolist()
EXPECTED = [RECORDS[i] for i in ORDER]
SHARD = "d-train.array_record-0000{}-of-00004"
# A busy machine answers late: what counts requests waits, and asks once.
OPTIONS = ReadOptions(timeout_seconds=30, deadline_seconds=60, hedge_factor=None)
IMPATIENT = ReadOptions(timeout_seconds=0.5, deadline_seconds=3, hedge_factor=None)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return convert(tmp_path_factory.mktemp("converted"), FILES)


@pytest.fixture
def server(server, converted):
    upload(server, converted, "c4")
    yield server
    gc.collect()  # With the datasets their threads end.


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def open_c4(cache):
    """Opens a dataset of the bucket with a cache."""

    def opened(path="c4", **options):
        usual = {"read_options": OPTIONS, "cache_bytes": 1 << 30, "cache_dir": cache}
        dataset = loader.open(f"gs://bucket/{path}", **usual | options)
        copies = dataset.stored.shards.remote.copies
        if copies is not None:
            copies.pause_seconds = 0.2
        return dataset

    return opened


def copies(cache):
    """Returns the sizes of all copies by name, while others may delete them."""
    sizes = {}
    for path in (cache / "shards").glob("*/*.shard"):
        with contextlib.suppress(FileNotFoundError):
            sizes[path.name] = path.stat().st_size
    return sizes


def filled(dataset, cache, count=3):
    assert dataset[ORDER] == EXPECTED
    until(lambda: len(copies(cache)) == count)


def fully(dataset):
    before = dataset.facts.cache.misses
    dataset[:]
    return dataset.facts.cache.misses == before


# What is asked for.


def test_the_second_epoch_makes_no_request(server, open_c4, cache):
    dataset = open_c4()
    filled(dataset, cache)
    again = open_c4()  # As another process of the host.
    server.requests.clear()
    for each in (dataset, again):
        assert each[ORDER] == EXPECTED
        assert each[:] == RECORDS
    assert not server.requests
    size, count = sum(copies(cache).values()), len(RECORDS)
    expected = CacheCounts(misses=count, hits=2 * count, filled_bytes=size)
    assert dataset.facts.cache == expected


def test_a_cache_too_small_for_all_serves_what_it_has(server, open_c4, cache):
    first, second, third = (
        open_c4(cache_bytes=None).shard(shard).file_bytes for shard in (0, 2, 3)
    )
    # The records of the shard 2 are large: it saves fewest requests for its bytes.
    dataset = open_c4(cache_bytes=first + third + second // 2)
    filled(dataset, cache, count=2)
    server.log.clear()
    assert dataset[ORDER] == EXPECTED
    assert copies(cache).keys() == {"00000000.shard", "00000003.shard"}
    assert {name for _, name, _ in server.log} == {f"c4/{SHARD.format(2)}"}
    assert (dataset.facts.cache.hits, dataset.facts.cache.evictions) == (700, 0)
    # A job may give the cache fewer bytes than the job before.
    assert open_c4(cache_bytes=first)[:400] == RECORDS[:400]
    until(lambda: sum(copies(cache).values()) <= first)


def test_after_an_append_only_what_is_new_is_fetched(server, tmp_path, open_c4, cache):
    more = [text_records(50, seed=8), text_records(40, seed=9)]
    both = [*RECORDS, *itertools.chain(*more)]

    def fetched(**options):
        """Reads all, and returns the indexes and shards that were fetched for it."""
        dataset = open_c4("grown", **options)
        server.log.clear()
        assert dataset[:] == both[: len(dataset)]
        return [name for kind, name, _ in server.log if kind == "media"]

    for number, files in ((1, FILES), (2, more)):
        grown = convert(tmp_path / "grown", files, edition=number)
        upload(server, grown, "grown")
        names = fetched()
        assert sum(name.endswith(".index") for name in names) == [3, 2][number - 1]
        until(lambda most=2 * number + 1: len(list(cache.rglob("*.shard"))) == most)
    mark = open_manifest(grown).splits["train"].part(2).write
    assert all(f"-{mark}-" in name for name in names)
    assert fetched() == fetched(edition=1) == []


# Several processes.

READING = """
import sys, time
from gristmill import loader
dataset = loader.open("gs://bucket/c4", cache_dir=sys.argv[1], cache_bytes=1 << 30)
dataset[:]
"""


@pytest.mark.slow
def test_copies_that_nobody_reads_are_evicted_and_others_are_not(
    server, tmp_path, open_c4, cache
):
    reader = open_c4()
    filled(reader, cache)
    (used,) = (cache / "shards").glob("*/")
    size = sum(copies(cache).values())
    files = [text_records(300, seed=8), text_records(200, seed=9)]
    upload(server, convert(tmp_path / "more", files), "more")
    more = open_c4("more", cache_bytes=size)
    assert more[:] == [*files[0], *files[1]]
    time.sleep(0.5)
    assert len(copies(cache)) == 3
    assert more.facts.cache.filled_bytes == more.facts.cache.evictions == 0
    # The one that was not read for the longest time goes first.
    for age, name in enumerate(["00000002", "00000000", "00000003"]):
        os.utime(used / f"{name}.shard", (1e9 - age, 1e9 - age))
    del reader
    gc.collect()  # As if its process had ended.
    until(lambda: more.facts.cache.filled_bytes > 0)
    until(lambda: fully(more))
    until(lambda: more.facts.cache.evictions == 2)
    assert [path.name for path in used.glob("*.shard")] == ["00000002.shard"]
    assert sum(copies(cache).values()) <= size


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_behind(server, open_c4, cache):
    # Behind the index, and the records.
    server.fail("hold", "media", name=SHARD.format(0), skip=2)
    command = [sys.executable, "-c", READING + "time.sleep(60)", str(cache)]
    with subprocess.Popen(command) as process:
        until(lambda: bool(list(cache.rglob("*.tmp"))))
        process.kill()
    server.release.set()
    server.faults.clear()
    filled(open_c4(), cache)
    assert not list(cache.rglob("*.tmp"))


# What goes wrong.


@pytest.mark.parametrize("kind", ["flip", "503", "429", "cut", "short", "stall"])
def test_filling_survives(server, open_c4, cache, kind):
    dataset = open_c4(read_options=IMPATIENT if kind == "stall" else OPTIONS)
    assert dataset[0] == RECORDS[0]
    server.fail(kind, "media", name=SHARD.format(3), skip=2, times=2)
    assert dataset[500] == RECORDS[500]
    until(lambda: len(copies(cache)) == 2)
    assert server.faults[0].times == 0
    server.requests.clear()
    assert dataset[410:] == RECORDS[410:]
    assert not server.requests


def test_what_the_disk_did_not_keep_is_no_copy(
    server, open_c4, cache, monkeypatch, caplog
):
    """A copy is read a second time before it has its name."""
    lost = [b"other bytes"]

    def spoil(descriptor, data, offset):
        if lost:
            os.pwrite(descriptor, lost.pop(), offset + 500)

    watched(monkeypatch, os, "pwrite", spoil, after=True)
    with caplog.at_level(logging.WARNING):
        filled(open_c4(), cache)
    assert "no copy of gs://bucket/c4" in caplog.text
    again = open_c4()
    server.requests.clear()
    assert again[ORDER] == EXPECTED
    assert not server.requests


@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros", "gone"])
def test_a_damaged_copy_is_deleted_and_its_records_are_fetched(
    server, open_c4, cache, damage, caplog
):
    filled(open_c4(), cache)
    (copy,) = cache.glob("shards/*/00000003.shard")
    data = copy.read_bytes()
    middle = open_c4().stored.offset_bytes(500) + 60  # in its content
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    bad = {"cut": data[:middle], "flipped": flipped, "zeros": bytes(len(data))}
    copy.write_bytes(bad[damage]) if damage in bad else copy.unlink()
    dataset = open_c4()
    with caplog.at_level(logging.WARNING):
        assert dataset[ORDER] == EXPECTED
    deleted = f"deleted a damaged local copy of gs://bucket/c4/{SHARD.format(3)}"
    assert (deleted in caplog.text) == (damage in ("flipped", "zeros"))
    until(lambda: copy.exists() and copy.read_bytes() == data)
    assert fully(dataset)


def test_a_shard_that_was_replaced_gets_no_copy_and_its_copy_stays_right(
    server, tmp_path, open_c4, cache
):
    filled(open_c4(), cache)
    name = f"c4/{SHARD.format(3)}"
    server.objects.tamper("bucket", name, "replace")
    with pytest.raises(CorruptShardError, match=f"(?s)gs://bucket/{name}.*crc32c"):
        open_c4(cache_dir=tmp_path / "other")[500]
    assert open_c4()[ORDER] == EXPECTED
    # Written again with other content, the dataset is another one.
    files = [text_records(400, seed=5), [], *FILES[2:]]
    server.objects.buckets["bucket"].clear()
    upload(server, convert(tmp_path / "again", files), "c4")
    again = open_c4()
    assert again[:400] == files[0]
    assert again.facts.cache.hits == 0


def test_a_shard_that_is_replaced_while_it_is_fetched_gets_no_copy(
    server, open_c4, cache, caplog
):
    dataset = open_c4()
    server.fail("replace", "media", name=SHARD.format(3), skip=2)
    with caplog.at_level(logging.WARNING):
        assert dataset[[500]] == [RECORDS[500]]
        until(lambda: caplog.text.count("no copy of gs://") == 3)
    assert "written again" in caplog.text
    assert not copies(cache)


@pytest.mark.slow
def test_a_disk_that_is_full_stops_nothing(server, cache):
    # As a disk that has room for the indexes, and for no shard.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    then = "time.sleep(0.5)\nassert len(dataset[:]) == len(dataset)\n"
    script = f"{limit}\n{READING}{then}print(dataset.facts.cache)"
    command = [sys.executable, "-c", script, str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "hits=0" in done.stdout
    for says in ("no copies of shards in", "File too large"):
        assert says in done.stderr
    assert not copies(cache)
    assert not list(cache.rglob("*.tmp"))


@pytest.mark.slow
def test_a_server_that_is_down_stops_nothing_that_has_copies(server, open_c4, cache):
    dataset = open_c4(read_options=IMPATIENT)
    assert dataset[:400] == RECORDS[:400]
    until(lambda: len(copies(cache)) == 1)
    server.go_down()
    assert dataset[:400] == RECORDS[:400]
    with pytest.raises(StorageError, match="gs://bucket/c4"):
        dataset[450]
    server.come_up()
    filled(dataset, cache)


def test_a_worker_without_its_cache_goes_on(server, open_c4, cache, caplog):
    data = pickle.dumps(open_c4())
    (cache / "shards" / "lock").unlink()
    (cache / "shards" / "lock").mkdir()
    with caplog.at_level(logging.WARNING):
        again = pickle.loads(data)
    assert "without local copies" in caplog.text
    assert again[ORDER] == EXPECTED
