"""Reading datasets in a bucket, over HTTP, with everything that can go wrong there."""

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
from typing import Any

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
ORDER = np.random.default_rng(3).permutation(len(RECORDS))[:120].tolist()
EXPECTED = [RECORDS[i] for i in ORDER]
SHARD = "c4/d-train.array_record-00000-of-00004"
# Short, so that what stalls is soon asked for again, and no second requests: these
# tests count them.
OPTIONS = ReadOptions(timeout_seconds=0.4, deadline_seconds=90, hedge_factor=None)


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


def open_c4(
    tmp_path: pathlib.Path, options: ReadOptions = OPTIONS, **more: Any
) -> loader.Dataset:
    cache_dir = tmp_path / "cache"
    return loader.open(
        "gs://bucket/c4", read_options=options, cache_dir=cache_dir, **more
    )


def fetcher_of(dataset: loader.Dataset) -> RangeFetcher:
    """Returns what fetches the shards of a dataset in a bucket."""
    remote = dataset.stored.shards.remote
    assert remote is not None
    return remote.fetcher


def warm(dataset: loader.Dataset, server: GcsServer) -> None:
    """Fetches indexes and versions, so that what is counted are shards."""
    assert dataset[0] == RECORDS[0]
    assert dataset[len(RECORDS) - 1] == RECORDS[-1]
    assert dataset[len(FILES[0])] == RECORDS[len(FILES[0])]
    server.requests.clear()
    server.log.clear()
    server.sent_bytes = 0


# What is asked for.


def test_opening_asks_for_two_objects_and_no_shard(
    server: GcsServer, opened: loader.Dataset
) -> None:
    assert len(opened) == len(RECORDS)
    assert opened.shard(0).path == f"gs://bucket/{SHARD}"
    assert sum(server.requests.values()) <= 3
    assert not any("array_record" in name for _, name, _ in server.log)


@BOTH_GROUP_SIZES
def test_every_record_is_right_whatever_the_order(opened: loader.Dataset) -> None:
    assert opened[ORDER] == EXPECTED
    assert opened[:] == RECORDS
    assert opened[5] == RECORDS[5]
    assert opened[[7, 7, 3]] == [RECORDS[7], RECORDS[7], RECORDS[3]]
    assert opened[[]] == []


@BOTH_GROUP_SIZES
def test_a_record_costs_one_request_and_its_own_bytes(
    server: GcsServer, opened: loader.Dataset
) -> None:
    warm(opened, server)
    group_size = opened.stored.reader.open_shards.get(0).index.group_size
    # Far apart: none are neighbours.
    wanted = list(range(0, len(FILES[0]), 40))
    occupied = 0
    for record in wanted:
        index = opened.stored.reader.open_shards.get(0).index
        ((_, begin, end, _, _),) = index.find_records([record])
        occupied += end - begin
    assert opened[wanted] == [RECORDS[i] for i in wanted]
    assert sum(server.requests.values()) == len(wanted)
    assert server.sent_bytes == occupied
    server.requests.clear()
    # Neighbours come together.
    assert opened[: 16 * group_size] == RECORDS[: 16 * group_size]
    assert sum(server.requests.values()) == 1


@BOTH_GROUP_SIZES
def test_few_bytes_are_read_in_excess(
    server: GcsServer, opened: loader.Dataset
) -> None:
    warm(opened, server)
    opened.read(ORDER)
    occupied = 0
    for shard, first in ((0, 0), (2, 400), (3, 400 + len(FILES[2]))):
        index = opened.stored.reader.open_shards.get(shard).index
        inside = sorted(i - first for i in ORDER if 0 <= i - first < index.records)
        occupied += sum(
            {b: e - b for _, b, e, _, _ in index.find_records(inside)}.values()
        )
    assert server.sent_bytes <= occupied * 1.05
    assert sum(server.requests.values()) <= len(ORDER) * 1.02


def test_indexes_are_fetched_once_per_host(
    server: GcsServer, opened: loader.Dataset, tmp_path: pathlib.Path
) -> None:
    def fetched() -> int:
        return sum(name.endswith(".index") for _, name, _ in server.log)

    assert not fetched()
    assert opened[[3, 450]] == [RECORDS[3], RECORDS[450]]
    assert fetched() == 2
    assert opened[[3, 399, 450]] == [RECORDS[3], RECORDS[399], RECORDS[450]]
    again = open_c4(tmp_path)
    assert again[ORDER] == EXPECTED
    assert fetched() == 3  # That of the shard without records never.


def test_a_damaged_or_foreign_index_is_noticed(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    name = "c4/index/d-train.array_record-{:05d}-of-00004.index"
    objects = server.objects.buckets["bucket"]
    good = objects[name.format(0)].data
    objects[name.format(0)] = objects[name.format(3)]
    with pytest.raises(GristmillError, match=f"(?s)gs://bucket/{name.format(0)}"):
        open_c4(tmp_path)[3]
    server.objects.put("bucket", name.format(0), b"X" + good[1:])
    with pytest.raises(GristmillError, match=f"(?s)gs://bucket/{name.format(0)}"):
        open_c4(tmp_path)[3]


@pytest.mark.slow
def test_threads_share_a_dataset(server: GcsServer, opened: loader.Dataset) -> None:
    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, len(RECORDS), 40)
        return opened[order] == [RECORDS[i] for i in order]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(24)))
    assert sum(name.endswith(".index") for _, name, _ in server.log) == 3


def test_threads_share_a_limit_of_few_requests_in_flight(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    dataset = open_c4(tmp_path, ReadOptions(in_flight=2, hedge_factor=None))
    warm(dataset, server)
    server.latency_seconds = 0.005
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(dataset.read, [ORDER[:30]] * 8)) == [EXPECTED[:30]] * 8


def _read_in_a_process(data: bytes) -> list[bytes]:
    dataset = pickle.loads(data)
    return dataset[ORDER]


@pytest.mark.slow
def test_worker_processes_share_the_indexes(
    server: GcsServer, opened: loader.Dataset
) -> None:
    assert opened[ORDER] == EXPECTED
    server.log.clear()
    data = pickle.dumps(opened)
    assert len(data) < 1000
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_read_in_a_process, [data] * 4) == [EXPECTED] * 4
    assert not any(name.endswith(".index") for _, name, _ in server.log)


def test_a_tfds_directory(server: GcsServer, tmp_path: pathlib.Path) -> None:
    """It has no indexes of ours: footers are fetched, with a version to pin."""
    name = "d-train.array_record-{:05d}-of-00002"
    lengths = []
    for number, records in enumerate((FILES[0], FILES[3])):
        path = tmp_path / name.format(number)
        write_array_records(path, records)
        server.objects.put("bucket", f"tfds/{path.name}", path.read_bytes())
        lengths.append(str(len(records)))
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": lengths,
    }
    info = {"name": "d", "version": "1.0.0", "fileFormat": "array_record"}
    text = json.dumps({**info, "splits": [split]})
    server.objects.put("bucket", "tfds/dataset_info.json", text.encode())
    records = FILES[0] + FILES[3]
    dataset = loader.open("gs://bucket/tfds", cache_dir=tmp_path / "cache")
    order = np.random.default_rng(5).permutation(len(records))[:90].tolist()
    assert dataset[order] == [records[i] for i in order]
    again = pickle.loads(pickle.dumps(dataset))
    assert again[order] == dataset[order]
    server.objects.put("bucket", f"tfds/{name.format(1)}", b"another")
    with pytest.raises(GristmillError, match=r"(?s)tfds/d-train\.array_record-00001"):
        dataset[len(records) - 1]


def test_plain_files_and_patterns(
    server: GcsServer, tmp_path: pathlib.Path, converted: str
) -> None:
    path = tmp_path / "plain.array_record"
    write_array_records(path, FILES[0])
    server.objects.put("bucket", "plain/a b#1.array_record", path.read_bytes())
    plain = loader.open("gs://bucket/plain/a b#1.array_record")
    assert plain[[3, 399]] == [FILES[0][3], FILES[0][399]]
    both = loader.open(["gs://bucket/plain/*.array_record", path])
    assert both[[3, 403]] == [FILES[0][3]] * 2
    again = pickle.loads(pickle.dumps(both))
    assert again[[403, 3]] == [FILES[0][3]] * 2
    # Beside a shard of a dataset lies its index, which has the checksums.
    shard = loader.open(f"gs://bucket/{SHARD}", verify="always")
    assert shard[[7, 300]] == [RECORDS[7], RECORDS[300]]
    write_array_records(path, FILES[0], options="group_size:1,transpose:true")
    server.objects.put("bucket", "t/x.array_record", path.read_bytes())
    with pytest.raises(TransposedChunkError, match=r"(?s)gs://bucket/t/x.*Writer"):
        loader.open("gs://bucket/t/x.array_record")[3]


# Faults that pass.


@pytest.mark.one_in(3)
@BOTH_GROUP_SIZES
@pytest.mark.parametrize(
    "kind", ["503", "429", "500", "408", "reset", "cut", "short", "stall", "flip"]
)
def test_reading_survives(server: GcsServer, opened: loader.Dataset, kind: str) -> None:
    warm(opened, server)
    times = 1 if kind == "flip" else 3
    server.fail(kind, "media", name=SHARD, times=times)
    # Within its deadline: what stalls is given up long before.
    assert opened[ORDER] == EXPECTED
    assert server.faults[0].times == 0


def test_only_what_is_damaged_is_fetched_again(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    # With a short timeout a busy machine sends a slow request again, which would count.
    opened = open_c4(tmp_path, ReadOptions(hedge_factor=None))
    warm(opened, server)
    opened.read(ORDER)
    undisturbed = server.requests["media"]
    server.fail("flip", "media", times=5)
    assert opened[ORDER] == EXPECTED
    assert [fault.times for fault in server.faults] == [0]
    assert undisturbed < server.requests["media"] - undisturbed <= undisturbed + 5


def test_plain_files_that_arrive_damaged(
    server: GcsServer, tmp_path: pathlib.Path, decoding: str
) -> None:
    path = tmp_path / "plain.array_record"
    records, wanted = FILES[0], [300, 5, 77, 5, 181]
    expected = [records[i] for i in wanted]
    for options in ("group_size:1,uncompressed", "group_size:5,zstd:3"):
        write_array_records(path, records, options=options)
        server.objects.put("bucket", "plain/x.array_record", path.read_bytes())
        dataset = loader.open("gs://bucket/plain/x.array_record", read_options=OPTIONS)
        assert dataset[wanted] == expected
        # The hash of a chunk tells that a bit was flipped: it is fetched again.
        before = server.requests["media"]
        server.fail("flip", "media", times=2)
        assert dataset[wanted] == expected
        assert server.requests["media"] > before + 4
        data = bytearray(path.read_bytes())
        data[dataset.stored.offset_bytes(77) + 50] ^= 1
        server.objects.put("bucket", "plain/x.array_record", bytes(data))
        dataset = loader.open("gs://bucket/plain/x.array_record", read_options=OPTIONS)
        with pytest.raises(CorruptShardError, match=r"(?s)record 77 of.*hash of"):
            dataset[wanted]


# More than are decoded at once, so that others are in flight meanwhile.
LONG_ORDER = np.random.default_rng(4).permutation(len(RECORDS))[:400].tolist()


def test_what_is_damaged_is_fetched_again_where_one_request_has_all_slots(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    dataset = open_c4(tmp_path, dataclasses.replace(OPTIONS, in_flight=1))
    warm(dataset, server)
    server.fail("flip", "media", times=5)
    assert dataset[LONG_ORDER] == [RECORDS[i] for i in LONG_ORDER]


@pytest.mark.slow
def test_requests_in_flight_at_an_error_give_back_their_slots(
    server: GcsServer, opened: loader.Dataset
) -> None:
    warm(opened, server)
    server.fail("flip", "media", times=10**6)
    with pytest.raises(CorruptShardError) as error:
        opened[LONG_ORDER]
    # Also while the error is kept, and with it all that it refers to.
    assert fetcher_of(opened).limit.taken == 0
    del error


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 7, 60])
def test_ctrl_c_gives_back_all_slots(
    server: GcsServer,
    opened: loader.Dataset,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    warm(opened, server)
    asked = itertools.count()

    advance = HttpConnection.advance

    def interrupted(connection: HttpConnection) -> Answer | None:
        if next(asked) == after:
            raise KeyboardInterrupt
        return advance(connection)

    with monkeypatch.context() as patched:
        # A signal comes at no chosen request.
        patched.setattr(HttpConnection, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opened[LONG_ORDER]
    assert fetcher_of(opened).limit.taken == 0
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
    options = ReadOptions(timeout_seconds=0.2, deadline_seconds=90, hedge_factor=None)
    dataset = open_c4(tmp_path, options)
    warm(dataset, server)
    server.latency_seconds = 0.5  # Longer than the patience with each request.
    assert dataset[3] == RECORDS[3]
    assert dataset.facts.requests.retries >= 1  # Two, or others on a busy machine.


@pytest.mark.parametrize("kind", ["503", "reset", "cut", "short", "stall", "flip"])
def test_fetching_indexes_survives(
    server: GcsServer, opened: loader.Dataset, kind: str
) -> None:
    server.fail(kind, "media", name=".index", times=2)
    assert opened[ORDER] == EXPECTED
    assert server.faults[0].times == 0


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
        options = ReadOptions(hedge_factor=hedge_factor)
        dataset = open_c4(tmp_path, options)
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


@pytest.mark.parametrize(
    ("status", "message", "cure"),
    [
        ("403", "bot@x lacks storage.objects.get access", "objectViewer"),
        ("401", "Invalid Credentials", "gcloud auth application-default login"),
        ("400", "Some reason", "look at the object"),
    ],
)
def test_a_refusal_is_raised_at_once_with_its_reason(
    server: GcsServer, opened: loader.Dataset, status: str, message: str, cure: str
) -> None:
    warm(opened, server)
    server.fail(status, "media", times=10**6, message=message)
    begin = time.monotonic()
    expected = f"(?s)gs://bucket/c4/d-train.*bytes.*{status}: {message}.*{cure}"
    with pytest.raises(StorageError, match=expected):
        opened[ORDER]
    expected = rf"(?s)gs://bucket/c4/dataset\.json.*({message}|credentials)"
    with pytest.raises(StorageError, match=expected):
        loader.open("gs://bucket/c4")
    assert time.monotonic() - begin < 60  # Not at the deadline.


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("503", "HTTP 503: made to fail"),
        ("429", "HTTP 429: made to fail"),
        ("reset", "Connection reset by peer|closed before the answer"),
        ("cut", r"closed after [\d,]+ of [\d,]+ bytes|reset"),
        ("stall", r"no answer in 0\.2 seconds"),
    ],
)
def test_retries_end_at_the_deadline(
    server: GcsServer, tmp_path: pathlib.Path, kind: str, cause: str
) -> None:
    options = ReadOptions(
        # A busy machine takes longer for an answer than the stall lasts here.
        timeout_seconds=0.2 if kind == "stall" else 30,
        deadline_seconds=1.4,
        hedge_factor=None,
    )
    dataset = open_c4(tmp_path, options)
    warm(dataset, server)
    server.fail(kind, "media", times=10**6)
    begin = time.monotonic()
    expected = rf"(?s)gs://bucket/{SHARD}, bytes \[.*1 seconds and.*({cause})"
    with pytest.raises(StorageError, match=expected):
        dataset[3]
    assert time.monotonic() - begin < 60


def test_a_body_that_is_always_short_is_an_error(
    server: GcsServer, opened: loader.Dataset
) -> None:
    warm(opened, server)
    server.fail("short", "media", times=10**6)
    with pytest.raises(StorageError, match=rf"(?s){SHARD}, bytes \[.*asked for.*got"):
        opened[3]


def test_bytes_that_are_always_wrong_are_an_error(
    server: GcsServer, opened: loader.Dataset
) -> None:
    warm(opened, server)
    server.fail("flip", "media", times=10**6)
    with pytest.raises(CorruptShardError, match=r"(?s)c4/d-train.*, record \d+ of the"):
        opened[ORDER]


@pytest.mark.slow
def test_a_server_that_is_gone_is_named(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    options = ReadOptions(timeout_seconds=0.3, deadline_seconds=1)
    dataset = open_c4(tmp_path, options)
    warm(dataset, server)
    server.go_down()
    begin = time.monotonic()
    with pytest.raises(StorageError, match=rf"(?s){SHARD}.*no success in 1 seconds"):
        dataset[3]
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("kind", ["same size", "shorter", "deleted"])
def test_a_shard_that_changes_while_it_is_read_is_named(
    server: GcsServer, opened: loader.Dataset, kind: str
) -> None:
    warm(opened, server)
    data = server.objects.buckets["bucket"][SHARD].data
    if kind == "deleted":
        del server.objects.buckets["bucket"][SHARD]
    else:
        size = len(data) if kind == "same size" else 100
        server.objects.put("bucket", SHARD, data[:size])
    begin = time.monotonic()
    with pytest.raises(StorageChangedError, match=f"(?s)gs://bucket/{SHARD}, bytes"):
        opened[[300, 3]]
    assert time.monotonic() - begin < 60  # Not at the deadline.


@pytest.mark.parametrize("size", [100, None], ids=["shorter", "same size"])
def test_a_shard_that_was_replaced_before_it_is_read_is_named(
    server: GcsServer, opened: loader.Dataset, size: int | None
) -> None:
    data = server.objects.buckets["bucket"][SHARD].data
    server.objects.put("bucket", SHARD, data[::-1][:size])
    with pytest.raises(CorruptShardError, match=f"(?s)gs://bucket/{SHARD}.*crc32c"):
        opened[3]


def test_a_shard_that_is_missing_is_named(
    server: GcsServer, opened: loader.Dataset
) -> None:
    del server.objects.buckets["bucket"][SHARD]
    with pytest.raises(
        StorageMissingError,
        match=f"(?s)object of the dataset does not exist.*gs://bucket/{SHARD}",
    ):
        opened[3]


def test_a_dataset_that_was_replaced_by_one_of_fewer_shards_is_named(
    server: GcsServer, opened: loader.Dataset, tmp_path: pathlib.Path
) -> None:
    assert opened[0] == RECORDS[0]  # The index of the last shard is fetched later.
    other = convert(tmp_path / "other", [text_records(70, seed=9)])
    server.objects.buckets["bucket"].clear()
    upload(server, other, "c4")
    with pytest.raises(InvalidDatasetError, match="replaced while it was in use"):
        opened[len(RECORDS) - 1]


@pytest.mark.parametrize("status", ["503", "403"])
def test_a_bucket_that_gives_no_answer_is_asked_nothing_else(
    server: GcsServer, tmp_path: pathlib.Path, status: str
) -> None:
    short = dataclasses.replace(OPTIONS, deadline_seconds=0.5)
    opened = open_c4(tmp_path, short)
    server.log.clear()
    server.fail(status, "media", times=1_000)
    with pytest.raises(StorageError, match=f"(?s)cannot read.*HTTP {status}"):
        opened[3]
    assert not [name for _, name, _ in server.log if name.endswith("dataset.json")]


def test_a_shard_that_is_copied_over_itself_is_the_same(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    data = server.objects.buckets["bucket"][SHARD].data
    server.objects.put("bucket", SHARD, data)
    assert open_c4(tmp_path)[ORDER] == EXPECTED


def test_a_dataset_that_was_replaced_is_named_by_a_worker(
    server: GcsServer, opened: loader.Dataset, tmp_path: pathlib.Path
) -> None:
    data = pickle.dumps(opened)
    other = convert(tmp_path / "other", [text_records(70, seed=9)])
    server.objects.buckets["bucket"].clear()
    upload(server, other, "c4")
    with pytest.raises(GristmillError, match="replaced while it was in use"):
        pickle.loads(data)


# This host.


@pytest.mark.parametrize("damage", ["empty", "cut", "header"])
def test_a_damaged_file_of_this_host_is_fetched_again(
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


SCRIPT = """
import itertools, sys, threading
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


@pytest.mark.slow
def test_a_process_ends_cleanly_with_requests_in_flight(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    server.latency_seconds = 0.02
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / "cache")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, "")
        assert "Error" not in done.stderr.replace("google_auth_provider", "")


@pytest.mark.slow
def test_a_forked_process_gets_an_error_that_names_spawn(
    server: GcsServer, opened: loader.Dataset, tmp_path: pathlib.Path
) -> None:
    code = (
        "import os, sys\n"
        "from gristmill import loader\n"
        "dataset = loader.open('gs://bucket/c4', cache_dir=sys.argv[1])\n"
        "dataset[3]\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        dataset[4]\n"
        "    except OSError as e:\n"
        "        print(e)\n"
        "        os._exit(0)\n"
        "os.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "start worker processes with the method 'spawn'" in done.stdout
