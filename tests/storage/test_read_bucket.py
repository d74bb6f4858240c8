"""Datasets in a bucket: right records by few requests, whatever goes wrong there."""

import concurrent.futures
import dataclasses
import itertools
import json
import multiprocessing
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import (
    CorruptShardError,
    GristmillError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
)
from gristmill.loader import BlockShuffle, ReadOptions
from gristmill.loader.feed.read_ahead import WindowReads
from gristmill.loader.remote.http_connection import HttpConnection
from tests.servers.buckets import upload
from tests.support.datasets import convert
from tests.support.records import AWKWARD_RECORDS, text_records, write_array_records

FILES = text_records(400, seed=1), [], [*AWKWARD_RECORDS], text_records(300, seed=2)
RECORDS = [*itertools.chain(*FILES)]
CHANCE = np.random.default_rng(3)
ORDER = CHANCE.permutation(len(RECORDS))[:120].tolist()
# More than are decoded at once, so that others are in flight meanwhile.
LONG_ORDER = CHANCE.permutation(len(RECORDS))[:400].tolist()
EXPECTED = [RECORDS[i] for i in ORDER]
SHARD = "c4/d-train.array_record-00000-of-00004"
INDEX = "c4/index/d-train.array_record-0000{}-of-00004.index"
# What stalls is soon asked for again, and nothing twice at once: requests are counted.
OPTIONS = ReadOptions(timeout_seconds=0.4, deadline_seconds=90, hedge_factor=None)
PATIENT = ReadOptions(hedge_factor=None)
ALWAYS = 10**6


@pytest.fixture(scope="module")
def converted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    return convert(folder, FILES, group_size=getattr(request, "param", 1))


@pytest.fixture
def server(server, converted):
    upload(server, converted, "c4")
    return server


@pytest.fixture
def opened(server, tmp_path):
    return open_c4(tmp_path)


def open_c4(tmp_path, options=OPTIONS):
    return loader.open(
        "gs://bucket/c4", read_options=options, cache_dir=tmp_path / "cache"
    )


def limit_of(dataset):
    return dataset.stored.shards.remote.fetcher.limit


def warm(dataset, server):
    """Fetches indexes and versions, so that what is counted are shards."""
    for record in (0, len(RECORDS) - 1, len(FILES[0])):
        assert dataset[record] == RECORDS[record]
    server.requests.clear()
    server.log.clear()
    server.sent_bytes = 0


both_group_sizes = pytest.mark.parametrize(
    "converted", [1, 16], indirect=True, ids="group{}".format
)


# What is asked for.


@both_group_sizes
def test_any_records_cost_few_requests(server, opened, request):
    assert len(opened) == len(RECORDS)
    assert sum(server.requests.values()) <= 3
    assert not any("array_record" in name for _, name, _ in server.log)
    for wanted in (ORDER, [7, 7, 3], []):
        assert opened[wanted] == [RECORDS[i] for i in wanted]
    assert opened[:] == RECORDS
    warm(opened, server)
    far_apart = range(0, 390, 40)
    assert opened[far_apart] == [RECORDS[i] for i in far_apart]
    assert server.requests == {"media": len(far_apart)}
    if "group1]" in request.node.name:  # The bytes of their chunks and no others.
        offset = opened.stored.offset_bytes
        assert server.sent_bytes == sum(offset(i + 1) - offset(i) for i in far_apart)
    server.requests.clear()
    assert opened[:16] == RECORDS[:16]  # Neighbours come together.
    assert server.requests == {"media": 1}


def _read_in_a_process(data):
    return pickle.loads(data)[ORDER] == EXPECTED


@pytest.mark.slow
def test_indexes_are_fetched_once_per_host(server, opened, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [*pool.map(opened.read, [ORDER] * 24)] == [EXPECTED] * 24
    assert open_c4(tmp_path)[ORDER] == EXPECTED
    data = pickle.dumps(opened)
    assert len(data) < 1000
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_read_in_a_process, [data] * 4) == [True] * 4
    # That of the shard without records never.
    assert sum(name.endswith(".index") for _, name, _ in server.log) == 3


@pytest.mark.parametrize("damage", ["empty", "cut", "header"])
def test_a_damaged_index_of_this_host_is_fetched_again(opened, tmp_path, damage):
    assert opened[ORDER] == EXPECTED
    for path in (tmp_path / "cache").rglob("*.index"):
        data = path.read_bytes()
        header = data[:20] + b"\0\0\0\0" + data[24:]
        bad = {"empty": b"", "cut": data[: len(data) // 2], "header": header}
        path.write_bytes(bad[damage])
    assert open_c4(tmp_path)[ORDER] == EXPECTED


def test_tfds_directories_plain_files_and_patterns(server, tmp_path):
    """They have no indexes of ours: footers are fetched, with a version to pin."""
    folder, records = "gs://bucket/a b#1", FILES[0] + FILES[3]
    split = {"name": "train", "shardLengths": ["400", "300"]}
    info = {"name": "d", "fileFormat": "array_record", "splits": [split]}
    (tmp_path / "tfds").mkdir()
    (tmp_path / "tfds" / "dataset_info.json").write_text(json.dumps(info))
    shards = [f"d-train.array_record-0000{n}-of-00002" for n in (0, 1)]
    for shard, part in zip(shards, (FILES[0], FILES[3]), strict=True):
        write_array_records(tmp_path / "tfds" / shard, part)
    upload(server, tmp_path / "tfds", "a b#1")
    order = CHANCE.permutation(len(records))[:90].tolist()
    some = [f"{folder}/{shards[0]}", tmp_path / "tfds" / shards[1]]
    for place in (folder, f"{folder}/*array_record*", some):
        dataset = loader.open(place, cache_dir=tmp_path / "cache")
        for each in (dataset, pickle.loads(pickle.dumps(dataset))):
            assert each[order] == [records[i] for i in order]
    dataset = loader.open(folder)
    server.objects.put("bucket", f"a b#1/{shards[1]}", b"another")
    with pytest.raises(GristmillError, match=f"(?s)a b#1/{shards[1]}"):
        dataset[len(records) - 1]
    # Beside a shard of a dataset lies its index, which has the checksums.
    shard = loader.open(f"gs://bucket/{SHARD}", verify="always")
    assert shard[[7, 300]] == [RECORDS[7], RECORDS[300]]


# Faults that pass.


@pytest.mark.one_in(6)
@both_group_sizes
@pytest.mark.parametrize("name", [SHARD, ".index"], ids=["shard", "index"])
@pytest.mark.parametrize("hedge_factor", [None, 3.0], ids=["once", "hedged"])
@pytest.mark.parametrize(
    "kind",
    ["503", "429", "500", "520", "408", "reset", "cut", "short", "stall", "flip"],
)
def test_reading_survives(server, tmp_path, kind, name, hedge_factor):
    opened = open_c4(tmp_path, dataclasses.replace(OPTIONS, hedge_factor=hedge_factor))
    if name == SHARD:
        warm(opened, server)
    server.fail(kind, "media", name=name, times=1 if kind == "flip" else 3)
    assert opened[ORDER] == EXPECTED
    assert server.faults[0].times == 0


@pytest.mark.parametrize("in_flight", [1, 256])
def test_only_what_is_damaged_is_fetched_again(server, tmp_path, in_flight):
    opened = open_c4(tmp_path, dataclasses.replace(PATIENT, in_flight=in_flight))
    warm(opened, server)
    opened.read(LONG_ORDER)
    undisturbed = server.requests["media"]
    server.fail("flip", "media", times=5)
    assert opened[LONG_ORDER] == [RECORDS[i] for i in LONG_ORDER]
    assert server.faults[0].times == 0
    assert undisturbed < server.requests["media"] - undisturbed <= undisturbed + 5


@pytest.mark.parametrize("options", ["group_size:1,uncompressed", "group_size:5"])
def test_plain_files_are_compared_with_the_hashes_of_their_chunks(
    server, tmp_path, decoding, options
):
    path, wanted = tmp_path / "plain.array_record", [300, 5, 77, 5, 181]
    write_array_records(path, FILES[0], options=options)
    server.objects.put("bucket", "x.array_record", path.read_bytes())
    dataset = loader.open("gs://bucket/x.array_record", read_options=OPTIONS)
    server.fail("flip", "media", skip=2, times=2)
    assert dataset[wanted] == [FILES[0][i] for i in wanted]
    assert server.faults[0].times == 0
    # Where the record is.
    server.fail("flip", "media", times=ALWAYS)
    with pytest.raises(CorruptShardError, match=r"(?s)record 77 of.*hash of"):
        dataset[[77]]


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 30, None])
def test_what_ends_a_read_gives_back_all_slots(server, opened, monkeypatch, after):
    """Ctrl-C, and an error: also while it is kept, with all that it refers to."""
    warm(opened, server)
    asked = itertools.count()
    advance = HttpConnection.advance

    def interrupted(connection):
        if next(asked) == after:
            raise KeyboardInterrupt
        return advance(connection)

    if after is None:
        server.fail("flip", "media", times=ALWAYS)
    with monkeypatch.context() as patched:
        # A signal comes at no chosen request.
        patched.setattr(HttpConnection, "advance", interrupted)
        with pytest.raises((KeyboardInterrupt, CorruptShardError)) as error:
            opened[LONG_ORDER]
    assert limit_of(opened).taken == 0
    del error
    server.faults.clear()
    assert opened[ORDER] == EXPECTED


@pytest.mark.slow
def test_threads_share_few_slots_which_nothing_that_stalls_keeps(server, tmp_path):
    dataset = open_c4(tmp_path, dataclasses.replace(OPTIONS, in_flight=2))
    warm(dataset, server)
    server.latency_seconds = 0.005
    server.fail("stall", "media", times=4)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert [*pool.map(dataset.read, [ORDER[:30]] * 8)] == [EXPECTED[:30]] * 8
    assert dataset.facts.requests.retries >= 4  # More on a busy machine.


def test_an_answer_that_comes_late_is_taken(server, tmp_path):
    dataset = open_c4(tmp_path, dataclasses.replace(OPTIONS, timeout_seconds=0.2))
    warm(dataset, server)
    server.latency_seconds = 0.5  # Longer than the patience with each request.
    assert dataset[3] == RECORDS[3]
    assert dataset.facts.requests.retries >= 1


@pytest.mark.slow
def test_a_burst_of_429_lowers_the_concurrency_for_a_while(server, opened):
    warm(opened, server)
    server.latency_seconds = 0.005
    server.fail("429", "media", times=100)
    assert opened[ORDER] == EXPECTED
    lowest = limit_of(opened).limit
    assert lowest < OPTIONS.in_flight / 2
    assert opened.facts.requests.throttled == 100
    for _ in range(10):
        opened.read(ORDER)
    assert limit_of(opened).limit > lowest
    assert limit_of(opened).taken == 0


@pytest.mark.alone
@pytest.mark.slow
def test_stragglers_get_a_second_request(server, tmp_path):
    def seconds(hedge_factor):
        dataset = open_c4(tmp_path, ReadOptions(hedge_factor=hedge_factor))
        for _ in range(8):
            dataset.read(ORDER)
        server.faults.clear()
        server.fail("slow", "media", times=1, skip=30, seconds=1.5)
        begin = time.monotonic()
        assert dataset[ORDER] == EXPECTED
        passed = time.monotonic() - begin
        counts = dataset.facts.requests
        assert counts.hedges <= counts.requests / 100
        assert bool(counts.hedges) == (hedge_factor is not None)
        return passed

    assert seconds(None) > 1.4
    # A busy machine has late answers of its own, which take what few there may be.
    assert any(seconds(3.0) < 1.2 for _ in range(9))


# Faults that stay.

AT_DEADLINE = rf"(?s)gs://bucket/{SHARD}, bytes \[.*1 seconds and.*"
REFUSED = r"(?s)gs://bucket/c4/d-train.*bytes.*"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("503", "made to fail", f"{AT_DEADLINE}HTTP 503: made to fail"),
        ("429", "made to fail", f"{AT_DEADLINE}HTTP 429: made to fail"),
        ("reset", "", f"{AT_DEADLINE}(reset by peer|closed before the answer)"),
        ("cut", "", rf"{AT_DEADLINE}(closed after [\d,]+ of [\d,]+ bytes|reset)"),
        ("stall", "", rf"{AT_DEADLINE}no answer in 0\.\d seconds"),
        ("down", "", rf"(?s){SHARD}.*no success in 1 seconds"),
        ("short", "", rf"(?s){SHARD}, bytes \[.*asked for.*got"),
        ("flip", "", r"(?s)c4/d-train.*, record \d+ of the"),
        ("403", "bot@x lacks access", f"{REFUSED}403: bot@x lacks.*objectViewer"),
        ("401", "Invalid", f"{REFUSED}401: Invalid.*gcloud auth application-default"),
        ("400", "Some reason", f"{REFUSED}400: Some reason.*look at the object"),
    ],
)
def test_a_fault_that_stays_is_told(server, tmp_path, kind, message, expected):
    # A busy machine takes longer for an answer than the stall lasts here.
    seconds = 0.2 if kind == "stall" else 30
    options = dataclasses.replace(
        PATIENT, timeout_seconds=seconds, deadline_seconds=1.4
    )
    dataset = open_c4(tmp_path, options)
    warm(dataset, server)
    if kind == "down":
        server.go_down()
    server.fail(kind, "media", times=ALWAYS, message=message)
    begin = time.monotonic()
    error = CorruptShardError if kind == "flip" else StorageError
    with pytest.raises(error, match=expected):
        dataset[3]
    # The manifest is not looked at, which a bucket that does not answer has not either.
    assert not [name for _, name, _ in server.log if name.endswith("dataset.json")]
    if kind in ("400", "401", "403"):  # At once.
        with pytest.raises(StorageError, match=r"(?s)gs://bucket/c4/dataset\.json"):
            loader.open("gs://bucket/c4")
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("in_use", [True, False])
@pytest.mark.parametrize("change", ["reversed", "shorter", "deleted", "the same"])
def test_a_shard_that_changes_is_named(server, opened, change, in_use):
    if in_use:
        warm(opened, server)
    data = server.objects.buckets["bucket"].pop(SHARD).data
    changed = {"reversed": data[::-1], "shorter": data[:100], "the same": data}
    if change != "deleted":
        server.objects.put("bucket", SHARD, changed[change])
    begin = time.monotonic()
    kind, says = CorruptShardError, "crc32c"
    if in_use:
        kind, says = StorageChangedError, ", bytes"
    elif change == "deleted":
        kind, says = StorageMissingError, ""
    elif change == "the same":  # As when it is copied over itself.
        assert opened[ORDER] == EXPECTED
        return
    with pytest.raises(kind, match=f"(?s)gs://bucket/{SHARD}.*{says}"):
        opened[[300, 3]]
    assert time.monotonic() - begin < 60  # Not at the deadline.


def test_an_index_that_was_replaced_is_named(server, tmp_path):
    name, objects = INDEX.format(0), server.objects.buckets["bucket"]
    for data in (b"X" + objects[name].data[1:], objects[INDEX.format(3)].data):
        server.objects.put("bucket", name, data)
        with pytest.raises(GristmillError, match=f"(?s)gs://bucket/{name}"):
            open_c4(tmp_path)[3]


# Processes.


ENDING = """
import os, sys, threading
from gristmill import loader
from gristmill.loader.remote.object_reads import ByteRange
dataset = loader.open("gs://bucket/c4", cache_dir=sys.argv[1])
dataset[3]
if os.fork() == 0:
    try:
        dataset[4]
    except OSError as e:
        print(e, flush=True)
        os._exit(0)
os.wait()
threading.Thread(target=lambda: dataset[:], daemon=True).start()
ranges = [ByteRange(dataset.shard(0).path, i, i + 9) for i in range(300)]
dataset.stored.shards.remote.fetcher.fetch(ranges, lambda *answer: sys.exit())
"""


@pytest.mark.slow
def test_a_process_may_fork_and_end_in_the_middle_of_an_answer(server, tmp_path):
    server.latency_seconds = 0.02
    command = [sys.executable, "-c", ENDING, tmp_path / "cache"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "start worker processes with the method 'spawn'" in done.stdout
    assert "Error" not in done.stderr.replace("google_auth_provider", "")


# Windows of a block shuffle: the same batches, in few requests.


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    files = [text_records(500, seed=seed) for seed in range(3)]
    return convert(tmp_path_factory.mktemp("grouped"), files, group_size=16)


@pytest.mark.parametrize(
    "rows", [slice(None), np.array([49, 0, 7])], ids=["all", "odd"]
)
def test_a_window_takes_a_request_for_each_block(server, grouped, tmp_path, rows):
    upload(server, grouped, "windows")
    batches = loader.global_batches(
        loader.open("gs://bucket/windows", read_options=PATIENT, cache_dir=tmp_path),
        batch_size=50,
        seed=3,
        shuffle=BlockShuffle(block_records=32, window_blocks=8),
        epochs=2,
        drop_remainder=False,
    )
    reads = WindowReads.of(batches.datasets, batches.schedule, rows)
    expected = [batches.read(step, rows) for step in range(60)]
    assert batches.steps == 60
    server.requests.clear()
    for step in (*range(60), 3, 59, 31):
        assert reads.read(step) == expected[step]
        if step == 59:
            assert sum(server.requests.values()) <= 60 * 50 / 32 * 1.4
