"""Reading datasets in a bucket, over HTTP, with everything that can go wrong there."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import multiprocessing
import pathlib
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    InvalidDatasetError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
    TransposedChunkError,
)
from gristmill.loader.feed.read_ahead import WindowReads
from gristmill.loader.order.shuffle import BlockShuffle
from gristmill.loader.remote.http_connection import Answer, HttpConnection
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import ReadOptions
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.datasets import convert
from tests.support.records import AWKWARD_RECORDS, text_records, write_array_records

FILES = (
    text_records(400, seed=1),
    [],
    list(AWKWARD_RECORDS),
    text_records(300, seed=2),
)
RECORDS = list(itertools.chain(*FILES))
CHANCE = np.random.default_rng(3)
ORDER = CHANCE.permutation(len(RECORDS))[:120].tolist()
# More than are decoded at once, so that others are in flight meanwhile.
LONG_ORDER = CHANCE.permutation(len(RECORDS))[:400].tolist()
EXPECTED = [RECORDS[i] for i in ORDER]
SHARD = "c4/d-train.array_record-00000-of-00004"
INDEX = "c4/index/d-train.array_record-0000{}-of-00004.index"
# Short, so that what stalls is soon asked for again, and no second requests: these
# tests count them.
OPTIONS = ReadOptions(timeout_seconds=0.4, deadline_seconds=90, hedge_factor=None)
PATIENT = ReadOptions(hedge_factor=None)

BOTH_GROUP_SIZES = pytest.mark.parametrize(
    "converted", [1, 16], indirect=True, ids="group{}".format
)


@pytest.fixture(scope="module")
def converted(request, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("converted")
    return convert(folder, FILES, group_size=getattr(request, "param", 1))


@pytest.fixture
def server(server: GcsServer, converted: str) -> GcsServer:
    upload(server, converted, "c4")
    return server


@pytest.fixture
def opened(server: GcsServer, tmp_path: pathlib.Path) -> loader.Dataset:
    return open_c4(tmp_path)


def open_c4(tmp_path: pathlib.Path, options: ReadOptions = OPTIONS) -> loader.Dataset:
    return loader.open(
        "gs://bucket/c4", read_options=options, cache_dir=tmp_path / "cache"
    )


def fetcher_of(dataset: loader.Dataset) -> RangeFetcher:
    """Returns what fetches the shards of a dataset in a bucket."""
    remote = dataset.stored.shards.remote
    assert remote is not None
    return remote.fetcher


def warm(dataset: loader.Dataset, server: GcsServer) -> None:
    """Fetches indexes and versions, so that what is counted are shards."""
    for record in (0, len(RECORDS) - 1, len(FILES[0])):
        assert dataset[record] == RECORDS[record]
    server.requests.clear()
    server.log.clear()
    server.sent_bytes = 0


# What is asked for.


@BOTH_GROUP_SIZES
def test_every_record_is_right_whatever_the_order(
    server: GcsServer, opened: loader.Dataset
) -> None:
    assert len(opened) == len(RECORDS)
    assert sum(server.requests.values()) <= 3
    assert not any("array_record" in name for _, name, _ in server.log)
    assert opened[ORDER] == EXPECTED
    assert opened[:] == RECORDS
    assert opened[[7, 7, 3]] == [RECORDS[7], RECORDS[7], RECORDS[3]]
    assert opened[[]] == []


@BOTH_GROUP_SIZES
def test_a_record_costs_one_request_and_its_own_bytes(
    server: GcsServer, opened: loader.Dataset
) -> None:
    warm(opened, server)
    indexes = [opened.stored.reader.open_shards.get(k).index for k in (0, 2, 3)]

    def occupied(records: list[int]) -> int:
        chunks, first = {}, 0
        for index in indexes:
            inside = sorted({i - first for i in records} & {*range(index.records)})
            for _, begin, end, _, _ in index.find_records(inside):
                chunks[first, begin] = end - begin
            first += index.records
        return sum(chunks.values())

    # Far apart: none are neighbours.
    wanted = list(range(0, len(FILES[0]), 40))
    assert opened[wanted] == [RECORDS[i] for i in wanted]
    assert sum(server.requests.values()) == len(wanted)
    assert server.sent_bytes == occupied(wanted)
    warm(opened, server)
    opened.read(ORDER)
    assert server.sent_bytes <= occupied(ORDER) * 1.05
    assert sum(server.requests.values()) <= len(ORDER) * 1.02
    # Neighbours come together.
    server.requests.clear()
    neighbours = 16 * indexes[0].group_size
    assert opened[:neighbours] == RECORDS[:neighbours]
    assert sum(server.requests.values()) == 1


def _read_in_a_process(data: bytes) -> list[bytes]:
    dataset = pickle.loads(data)
    return dataset[ORDER]


@pytest.mark.slow
def test_indexes_are_fetched_once_per_host(
    server: GcsServer, opened: loader.Dataset, tmp_path: pathlib.Path
) -> None:
    def fetched() -> int:
        return sum(name.endswith(".index") for _, name, _ in server.log)

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, len(RECORDS), 40)
        return opened[order] == [RECORDS[i] for i in order]

    assert opened[[3, 399, 450]] == [RECORDS[3], RECORDS[399], RECORDS[450]]
    assert fetched() == 2
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(24)))
    assert open_c4(tmp_path)[ORDER] == EXPECTED
    data = pickle.dumps(opened)
    assert len(data) < 1000
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_read_in_a_process, [data] * 4) == [EXPECTED] * 4
    assert fetched() == 3  # That of the shard without records never.


def test_a_damaged_or_foreign_index_is_noticed(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    name = INDEX.format(0)
    objects = server.objects.buckets["bucket"]
    for data in (b"X" + objects[name].data[1:], objects[INDEX.format(3)].data):
        server.objects.put("bucket", name, data)
        with pytest.raises(GristmillError, match=f"(?s)gs://bucket/{name}"):
            open_c4(tmp_path)[3]


@pytest.mark.parametrize("damage", ["empty", "cut", "header"])
def test_a_damaged_index_of_this_host_is_fetched_again(
    opened: loader.Dataset, tmp_path: pathlib.Path, damage: str
) -> None:
    assert opened[ORDER] == EXPECTED
    for path in (tmp_path / "cache").rglob("*.index"):
        data = path.read_bytes()
        if damage == "header":
            path.write_bytes(data[:20] + b"\0\0\0\0" + data[24:])
        else:
            path.write_bytes(data[: len(data) // 2 if damage == "cut" else 0])
    assert open_c4(tmp_path)[ORDER] == EXPECTED


def test_threads_share_a_limit_of_few_requests_in_flight(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    dataset = open_c4(tmp_path, dataclasses.replace(PATIENT, in_flight=2))
    warm(dataset, server)
    server.latency_seconds = 0.005
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(dataset.read, [ORDER[:30]] * 8)) == [EXPECTED[:30]] * 8


def test_tfds_directories_plain_files_and_patterns(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    """They have no indexes of ours: footers are fetched, with a version to pin."""
    folder = "gs://bucket/a b#1"
    paths = [tmp_path / f"d-train.array_record-0000{n}-of-00002" for n in (0, 1)]
    for path, records in zip(paths, (FILES[0], FILES[3]), strict=True):
        write_array_records(path, records)
        server.objects.put("bucket", f"a b#1/{path.name}", path.read_bytes())
    split = {
        **{"name": "train", "shardLengths": ["400", "300"]},
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    }
    info = {"name": "d", "version": "1.0.0", "fileFormat": "array_record"}
    text = json.dumps({**info, "splits": [split]})
    server.objects.put("bucket", "a b#1/dataset_info.json", text.encode())
    records = FILES[0] + FILES[3]
    order = CHANCE.permutation(len(records))[:90].tolist()
    for place in (
        *(folder, f"{folder}/*array_record*"),
        [f"{folder}/{paths[0].name}", paths[1]],
    ):
        dataset = loader.open(place, cache_dir=tmp_path / "cache")
        for each in (dataset, pickle.loads(pickle.dumps(dataset))):
            assert each[order] == [records[i] for i in order]
    dataset = loader.open(folder)
    server.objects.put("bucket", f"a b#1/{paths[1].name}", b"another")
    with pytest.raises(GristmillError, match=f"(?s)a b#1/{paths[1].name}"):
        dataset[len(records) - 1]
    # Beside a shard of a dataset lies its index, which has the checksums.
    shard = loader.open(f"gs://bucket/{SHARD}", verify="always")
    assert shard[[7, 300]] == [RECORDS[7], RECORDS[300]]
    write_array_records(paths[0], FILES[0], options="group_size:1,transpose:true")
    server.objects.put("bucket", "t/x.array_record", paths[0].read_bytes())
    with pytest.raises(TransposedChunkError, match=r"(?s)gs://bucket/t/x.*Writer"):
        loader.open("gs://bucket/t/x.array_record")[3]


def test_plain_files_that_arrive_damaged(
    server: GcsServer, tmp_path: pathlib.Path, decoding: None
) -> None:
    path = tmp_path / "plain.array_record"
    wanted = [300, 5, 77, 5, 181]
    expected = [FILES[0][i] for i in wanted]
    for options in ("group_size:1,uncompressed", "group_size:5,zstd:3"):
        write_array_records(path, FILES[0], options=options)
        data = bytearray(path.read_bytes())
        server.objects.put("bucket", "plain/x.array_record", bytes(data))
        dataset = loader.open("gs://bucket/plain/x.array_record", read_options=OPTIONS)
        # The hash of a chunk tells that a bit was flipped: it is fetched again.
        before = server.requests["media"]
        server.fail("flip", "media", skip=2, times=2)
        assert dataset[wanted] == expected
        assert server.requests["media"] > before + 4
        data[dataset.stored.offset_bytes(77) + 50] ^= 1
        server.objects.put("bucket", "plain/x.array_record", bytes(data))
        dataset = loader.open("gs://bucket/plain/x.array_record", read_options=OPTIONS)
        with pytest.raises(CorruptShardError, match=r"(?s)record 77 of.*hash of"):
            dataset[wanted]


# Faults that pass.


@pytest.mark.one_in(3)
@BOTH_GROUP_SIZES
@pytest.mark.parametrize("name", [SHARD, ".index"], ids=["shard", "index"])
@pytest.mark.parametrize(
    "kind", ["503", "429", "500", "408", "reset", "cut", "short", "stall", "flip"]
)
def test_reading_survives(
    server: GcsServer, opened: loader.Dataset, kind: str, name: str
) -> None:
    if name == SHARD:
        warm(opened, server)
    server.fail(kind, "media", name=name, times=1 if kind == "flip" else 3)
    # Within its deadline: what stalls is given up long before.
    assert opened[ORDER] == EXPECTED
    assert server.faults[0].times == 0


def test_only_what_is_damaged_is_fetched_again(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    for in_flight in (1, 256):  # Where one request has all slots, too.
        opened = open_c4(tmp_path, dataclasses.replace(PATIENT, in_flight=in_flight))
        warm(opened, server)
        opened.read(LONG_ORDER)
        undisturbed = server.requests["media"]
        server.fail("flip", "media", times=5)
        assert opened[LONG_ORDER] == [RECORDS[i] for i in LONG_ORDER]
        assert server.faults.pop().times == 0
        assert undisturbed < server.requests["media"] - undisturbed <= undisturbed + 5


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 7, 30, None])
def test_what_ends_a_read_gives_back_all_slots(
    server: GcsServer,
    opened: loader.Dataset,
    monkeypatch: pytest.MonkeyPatch,
    after: int | None,
) -> None:
    """An error, and Ctrl-C."""
    warm(opened, server)
    asked = itertools.count()
    advance = HttpConnection.advance

    def interrupted(connection: HttpConnection) -> Answer | None:
        if next(asked) == after:
            raise KeyboardInterrupt
        return advance(connection)

    if after is None:
        server.fail("flip", "media", times=10**6)
    with monkeypatch.context() as patched:
        # A signal comes at no chosen request.
        patched.setattr(HttpConnection, "advance", interrupted)
        with pytest.raises((KeyboardInterrupt, CorruptShardError)) as error:
            opened[LONG_ORDER]
    # Also while the error is kept, and with it all that it refers to.
    assert fetcher_of(opened).limit.taken == 0
    del error
    server.faults.clear()
    assert opened[ORDER] == EXPECTED


@pytest.mark.slow
def test_what_never_answers_does_not_keep_its_slot(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    dataset = open_c4(tmp_path, dataclasses.replace(OPTIONS, in_flight=2))
    warm(dataset, server)
    server.fail("stall", "media", times=4)
    assert dataset[ORDER] == EXPECTED
    assert dataset.facts.requests.retries >= 4  # More on a busy machine.


def test_an_answer_that_comes_late_is_taken(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    dataset = open_c4(tmp_path, dataclasses.replace(OPTIONS, timeout_seconds=0.2))
    warm(dataset, server)
    server.latency_seconds = 0.5  # Longer than the patience with each request.
    assert dataset[3] == RECORDS[3]
    assert dataset.facts.requests.retries >= 1  # Two, or others on a busy machine.


@pytest.mark.slow
def test_a_burst_of_429_lowers_the_concurrency_for_a_while(
    server: GcsServer, opened: loader.Dataset
) -> None:
    warm(opened, server)
    limit = fetcher_of(opened).limit
    server.latency_seconds = 0.005
    server.fail("429", "media", times=100)
    assert opened[ORDER] == EXPECTED
    lowest = limit.limit
    assert lowest < OPTIONS.in_flight / 2
    assert opened.facts.requests.throttled == 100
    assert opened[:] == RECORDS
    for _ in range(10):
        opened.read(ORDER)
    assert limit.limit > lowest
    assert limit.taken == 0


@pytest.mark.alone
@pytest.mark.slow
def test_stragglers_get_a_second_request(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    def seconds(hedge_factor: float | None) -> float:
        dataset = open_c4(tmp_path, ReadOptions(hedge_factor=hedge_factor))
        for _ in range(8):
            assert dataset[ORDER] == EXPECTED
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
def test_a_fault_that_stays_is_told(
    server: GcsServer, tmp_path: pathlib.Path, kind: str, message: str, expected: str
) -> None:
    options = ReadOptions(
        # A busy machine takes longer for an answer than the stall lasts here.
        timeout_seconds=0.2 if kind == "stall" else 30,
        deadline_seconds=1.4,
        hedge_factor=None,
    )
    dataset = open_c4(tmp_path, options)
    warm(dataset, server)
    if kind == "down":
        server.go_down()
    server.fail(kind, "media", times=10**6, message=message)
    begin = time.monotonic()
    error = CorruptShardError if kind == "flip" else StorageError
    with pytest.raises(error, match=expected):
        dataset[3]
    if kind in ("400", "401", "403"):  # At once.
        with pytest.raises(StorageError, match=r"(?s)gs://bucket/c4/dataset\.json"):
            loader.open("gs://bucket/c4")
    assert time.monotonic() - begin < 60
    # Nor is the manifest looked at, which a bucket that gives no answer has not either.
    names = [name for _, name, _ in server.log if name.endswith("dataset.json")]
    assert len(names) <= (kind in ("400", "401", "403"))


@pytest.mark.parametrize("change", ["reversed", "shorter", "deleted", "the same"])
@pytest.mark.parametrize("in_use", [True, False])
def test_a_shard_that_changes_is_named(
    server: GcsServer, opened: loader.Dataset, change: str, in_use: bool
) -> None:
    if in_use:
        warm(opened, server)
    data = server.objects.buckets["bucket"][SHARD].data
    if change == "deleted":
        del server.objects.buckets["bucket"][SHARD]
    else:
        changed = {"reversed": data[::-1], "shorter": data[:100], "the same": data}
        server.objects.put("bucket", SHARD, changed[change])
    begin = time.monotonic()
    kind: type[GristmillError] = CorruptShardError
    says = "crc32c"
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


def test_a_dataset_that_was_replaced_is_named(
    server: GcsServer, opened: loader.Dataset, tmp_path: pathlib.Path
) -> None:
    assert opened[0] == RECORDS[0]  # The index of the last shard is fetched later.
    data = pickle.dumps(opened)
    other = convert(tmp_path / "other", [text_records(70, seed=9)])
    server.objects.buckets["bucket"].clear()
    upload(server, other, "c4")
    with pytest.raises(InvalidDatasetError, match="replaced while it was in use"):
        opened[len(RECORDS) - 1]
    with pytest.raises(GristmillError, match="replaced while it was in use"):
        pickle.loads(data)


# Processes.

ENDING = """
import sys, threading
from gristmill import loader
from gristmill.loader.remote.object_reads import ByteRange
if __name__ == "__main__":
    dataset = loader.open("gs://bucket/c4", cache_dir=sys.argv[1])
    assert len(dataset[::7]) == len(range(0, len(dataset), 7))
    # Left in the middle of an answer, and with a thread that reads.
    fetcher = dataset.stored.shards.remote.fetcher
    threading.Thread(target=lambda: dataset[:], daemon=True).start()
    ranges = [ByteRange(dataset.shard(0).path, i, i + 9) for i in range(300)]
    fetcher.fetch(ranges, lambda *answer: sys.exit())
"""
FORKING = """
import os, sys
from gristmill import loader
dataset = loader.open("gs://bucket/c4", cache_dir=sys.argv[1])
dataset[3]
if os.fork() == 0:
    try:
        dataset[4]
    except OSError as e:
        print(e, flush=True)
        os._exit(0)
os.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "says"),
    [(ENDING, ""), (FORKING, "start worker processes with the method 'spawn'")],
    ids=["ends", "forks"],
)
def test_a_process_with_requests_in_flight(
    server: GcsServer, tmp_path: pathlib.Path, program: str, says: str
) -> None:
    server.latency_seconds = 0.02
    script = tmp_path / "script.py"
    script.write_text(program)
    command = [sys.executable, str(script), str(tmp_path / "cache")]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
        assert says in done.stdout
        assert says or not done.stdout
        assert "Error" not in done.stderr.replace("google_auth_provider", "")


# Windows of a block shuffle: the same batches, in few requests.

SHUFFLE = BlockShuffle(block_records=32, window_blocks=8)
WINDOW_FILES = [text_records(500, seed=seed) for seed in range(3)]
WINDOW_RECORDS = list(itertools.chain(*WINDOW_FILES))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> str:
    return convert(tmp_path_factory.mktemp("grouped"), WINDOW_FILES, group_size=16)


@pytest.fixture
def batches(server: GcsServer, grouped: str, tmp_path: pathlib.Path):
    upload(server, grouped, "windows")
    # A busy machine answers late: what counts requests waits, and asks once.
    options = ReadOptions(timeout_seconds=30, deadline_seconds=2, hedge_factor=None)
    dataset = loader.open(
        "gs://bucket/windows", read_options=options, cache_dir=tmp_path / "windows"
    )
    return loader.global_batches(
        dataset, batch_size=50, seed=3, shuffle=SHUFFLE, epochs=2, drop_remainder=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [slice(None), slice(10, 30), np.array([49, 0, 7])],
    ids=["all", "some", "odd"],
)
def test_batches_are_what_they_are_without_windows(
    server: GcsServer, batches, rows
) -> None:
    reads = WindowReads.of(batches.datasets, batches.schedule, rows)
    assert batches.steps == 60
    for step in [*range(60), 3, 59, 31, 30]:
        assert reads.read(step) == batches.read(step, rows)
    server.fail("503", "media", times=10**6)
    with pytest.raises(StorageError, match="HTTP 503"):
        reads.read(0)
    server.faults.clear()
    assert reads.read(0) == batches.read(0, rows)


def test_a_window_takes_a_request_for_each_block(server: GcsServer, batches) -> None:
    reads = WindowReads.of(batches.datasets, batches.schedule, slice(None))
    batches.read(0)
    server.requests.clear()
    read = [record for step in range(30) for record in reads.read(step)]
    assert sorted(read) == sorted(WINDOW_RECORDS)
    blocks = -(-len(WINDOW_RECORDS) // 32)
    # And what was read ahead of the next epoch.
    assert sum(server.requests.values()) <= blocks * 1.4
    server.requests.clear()
    for step in range(30):
        batches.read(step)
    assert sum(server.requests.values()) > blocks * 4


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 5])
def test_records_of_hosts_and_workers_are_read_by_windows(
    server: GcsServer, batches, step: int
) -> None:
    """Of batches that change their size, and whose last one has 56 rows."""
    batches = batches.then(batch_size=64, step=step)
    expected = [
        [WINDOW_RECORDS[i] for i in np.array_split(batches.indices(step), 2)[1]]
        for step in range(batches.steps)
    ]
    for worker in range(2):
        server.requests.clear()
        dataset = batches.records(host=(1, 2))
        dataset.set_slice(slice(worker, None, 2))
        assert list(dataset) == list(itertools.chain(*expected[worker::2]))
        assert sum(server.requests.values()) < 2 * len(WINDOW_RECORDS) / 10
