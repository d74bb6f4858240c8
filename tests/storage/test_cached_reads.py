"""Reading a bucket through a cache of shards, over HTTP, by one process and several."""

import contextlib
import gc
import itertools
import logging
import os
import pathlib
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    StorageError,
)
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.loader.remote.read_options import CacheCounts, ReadOptions
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.datasets import convert
from tests.support.records import AWKWARD_RECORDS, text_records
from tests.support.waiting import until

FILES = (
    text_records(400, seed=1),
    [],
    list(AWKWARD_RECORDS),
    text_records(300, seed=2),
)
RECORDS = list(itertools.chain(*FILES))
ORDER = np.random.default_rng(3).permutation(len(RECORDS)).tolist()
EXPECTED = [RECORDS[i] for i in ORDER]
SHARD = "d-train.array_record-0000{}-of-00004"
# A busy machine answers late: what counts requests waits, and asks once.
OPTIONS = ReadOptions(timeout_seconds=30, deadline_seconds=60, hedge_factor=None)
IMPATIENT = ReadOptions(timeout_seconds=0.5, deadline_seconds=3, hedge_factor=None)
PLENTY = 1 << 30


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> str:
    return convert(tmp_path_factory.mktemp("converted"), FILES)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, converted: str) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, converted, "c4")
        yield server
        gc.collect()  # With the datasets their threads end.


def open_c4(
    tmp_path: pathlib.Path,
    cache_bytes: int | None = PLENTY,
    path: str = "c4",
    read_options: ReadOptions = OPTIONS,
) -> loader.Dataset:
    dataset = loader.open(
        f"gs://bucket/{path}",
        read_options=read_options,
        cache_dir=tmp_path / "cache",
        cache_bytes=cache_bytes,
    )
    copies = dataset.stored.shards.remote.copies
    if copies is not None:
        copies.pause_seconds = 0.2
    return dataset


def copies(tmp_path: pathlib.Path) -> dict[str, int]:
    """Returns the sizes of all copies by name, while others may delete them."""
    sizes = {}
    for path in (tmp_path / "cache" / "shards").glob("*/*.shard"):
        with contextlib.suppress(FileNotFoundError):
            sizes[path.name] = path.stat().st_size
    return sizes


def filled(dataset: loader.Dataset, tmp_path: pathlib.Path, count: int = 3) -> None:
    assert dataset[ORDER] == EXPECTED
    until(lambda: len(copies(tmp_path)) == count)


def forget(server: GcsServer) -> None:
    server.requests.clear()
    server.log.clear()


# What is asked for.


def test_the_second_epoch_makes_no_request(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    dataset = open_c4(tmp_path)
    filled(dataset, tmp_path)
    size = sum(copies(tmp_path).values())
    assert dataset.facts.cache == CacheCounts(misses=len(RECORDS), filled_bytes=size)
    forget(server)
    assert dataset[ORDER] == EXPECTED
    assert dataset[:] == RECORDS
    assert not server.requests
    assert dataset.facts.cache == CacheCounts(
        misses=len(RECORDS), hits=2 * len(RECORDS), filled_bytes=size
    )
    # Nor does another process of the host, once it knows the dataset.
    again = open_c4(tmp_path)
    forget(server)
    assert again[ORDER] == EXPECTED
    assert not server.requests


def test_a_cache_too_small_for_all_serves_what_it_has(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    sizes = {k: open_c4(tmp_path, None).shard(k).file_bytes for k in (0, 2, 3)}
    # The records of the shard 2 are large: it saves fewest requests for its bytes.
    dataset = open_c4(tmp_path, sizes[0] + sizes[3] + sizes[2] // 2)
    filled(dataset, tmp_path, count=2)
    forget(server)
    for _ in range(2):
        assert dataset[ORDER] == EXPECTED
    assert copies(tmp_path).keys() == {"00000000.shard", "00000003.shard"}
    assert {name for _, name, _ in server.log} == {f"c4/{SHARD.format(2)}"}
    counts = dataset.facts.cache
    assert (counts.hits, counts.evictions) == (2 * 700, 0)


@pytest.mark.parametrize("cache_bytes", [None, PLENTY], ids=["indexes", "copies"])
def test_after_an_append_only_what_is_new_is_fetched(
    server: GcsServer, tmp_path: pathlib.Path, cache_bytes: int | None
) -> None:
    editions = [FILES, [text_records(50, seed=8), text_records(40, seed=9)]]
    both = [*RECORDS, *itertools.chain(*editions[1])]
    place = tmp_path / "cache" / "shards"

    def filled_with(count: int) -> None:
        until(lambda: len(list(place.glob("*/*.shard"))) == count)

    for number, files in enumerate(editions, 1):
        grown = convert(tmp_path / "grown", files, edition=number)
        upload(server, grown, "grown")
        mark = open_manifest(grown).splits["train"].part(number).write
        forget(server)
        dataset = open_c4(tmp_path, cache_bytes, "grown")
        assert dataset[:] == both[: len(dataset)]
        media = [name for kind, name, _ in server.log if kind == "media"]
        indexes = [name for name in media if name.endswith(".index")]
        assert len(indexes) == [3, 2][number - 1]
        assert number == 1 or all(f"-{mark}-" in name for name in indexes)
        if cache_bytes is not None:
            filled_with([3, 5][number - 1])
            media = [name for kind, name, _ in server.log if kind == "media"]
            shards = [name for name in media if "/d-train.array_record-" in name]
            assert number == 1 or all(f"-{mark}-" in name for name in shards)
            forget(server)
            assert dataset[:] == both[: len(dataset)]
            assert not server.requests
    # Who opens the first edition needs nothing, either.
    first = loader.open(
        "gs://bucket/grown",
        edition=1,
        read_options=OPTIONS,
        cache_dir=tmp_path / "cache",
        cache_bytes=cache_bytes,
    )
    forget(server)
    assert first[:] == RECORDS
    assert not [name for _, name, _ in server.log if name.endswith(".index")]
    assert cache_bytes is None or not server.requests


# Several processes.


WATCH = """
import sys, time
from gristmill import loader
dataset = loader.open("gs://bucket/c4", cache_dir=sys.argv[1], cache_bytes=1 << 30)
dataset[:]
print("reading", flush=True)
{then}
"""


def start(server: GcsServer, tmp_path: pathlib.Path, then: str) -> Any:
    script = tmp_path / "script.py"
    script.write_text(WATCH.format(then=then))
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "cache")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "reading\n"
    return process


@pytest.mark.slow
def test_copies_that_no_process_reads_are_evicted_and_others_are_not(
    server: GcsServer, tmp_path: pathlib.Path, converted: str
) -> None:
    process = start(server, tmp_path, "sys.stdin.read()")
    until(lambda: len(copies(tmp_path)) == 3)
    (used,) = (tmp_path / "cache" / "shards").glob("*/")
    size = sum(copies(tmp_path).values())
    files = [text_records(300, seed=8), text_records(200, seed=9)]
    upload(server, convert(tmp_path / "more", files), "more")
    more = open_c4(tmp_path, size, "more")
    assert more[:] == [*files[0], *files[1]]
    time.sleep(0.5)
    assert len(copies(tmp_path)) == 3
    assert more.facts.cache.filled_bytes == more.facts.cache.evictions == 0
    # The one that was not read for the longest time goes first.
    for age, name in enumerate(["00000002", "00000000", "00000003"]):
        os.utime(used / f"{name}.shard", (1e9 - age, 1e9 - age))
    process.communicate()
    until(lambda: more.facts.cache.filled_bytes > 0)
    until(lambda: fully(more))
    until(lambda: more.facts.cache.evictions == 2)
    assert [path.name for path in used.glob("*.shard")] == ["00000002.shard"]
    assert sum(copies(tmp_path).values()) <= size


def fully(dataset: loader.Dataset) -> bool:
    before = dataset.facts.cache.misses
    dataset[:]
    return dataset.facts.cache.misses == before


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_behind(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    temporary = tmp_path / "cache" / "shards"
    # Behind the index, and the records.
    server.fail("hold", "media", name=SHARD.format(0), skip=2)
    process = start(server, tmp_path, "time.sleep(60)")
    until(lambda: bool(list(temporary.glob("*/*.tmp"))))
    process.kill()
    process.communicate()
    server.release.set()
    server.faults.clear()
    (left,) = temporary.glob("*/")
    (left / "00000002.tmp").write_bytes(b"left")
    dataset = open_c4(tmp_path)
    filled(dataset, tmp_path)
    assert dataset[ORDER] == EXPECTED
    assert not list(temporary.glob("*/*.tmp"))


# What goes wrong.


@pytest.mark.parametrize("kind", ["flip", "503", "429", "cut", "short", "stall"])
def test_filling_survives(server: GcsServer, tmp_path: pathlib.Path, kind: str) -> None:
    options = IMPATIENT if kind == "stall" else OPTIONS
    dataset = open_c4(tmp_path, read_options=options)
    assert dataset[0] == RECORDS[0]
    server.fail(kind, "media", name=SHARD.format(3), skip=2, times=2)
    assert dataset[500] == RECORDS[500]
    until(lambda: len(copies(tmp_path)) == 2)
    assert server.faults[0].times == 0
    forget(server)
    assert dataset[410:] == RECORDS[410:]
    assert not server.requests


@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros", "gone"])
def test_a_damaged_copy_is_deleted_and_its_records_are_fetched(
    server: GcsServer,
    tmp_path: pathlib.Path,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    filled(open_c4(tmp_path), tmp_path)
    (copy,) = (tmp_path / "cache" / "shards").glob("*/00000003.shard")
    data = copy.read_bytes()
    middle = open_c4(tmp_path).stored.offset_bytes(500) + 60  # in its content
    if damage == "cut":
        copy.write_bytes(data[:middle])
    elif damage == "flipped":
        copy.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif damage == "zeros":
        copy.write_bytes(bytes(len(data)))
    else:
        copy.unlink()
    dataset = open_c4(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert dataset[ORDER] == EXPECTED
    deleted = f"deleted a damaged local copy of gs://bucket/c4/{SHARD.format(3)}"
    assert (deleted in caplog.text) == (damage in ("flipped", "zeros"))
    until(lambda: copy.exists() and copy.read_bytes() == data)
    assert fully(dataset)


def test_a_shard_that_was_replaced_gets_no_copy_and_its_copy_stays_right(
    server: GcsServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(open_c4(tmp_path), tmp_path)
    dataset = open_c4(tmp_path / "other")
    assert dataset[10] == RECORDS[10]
    until(lambda: len(copies(tmp_path / "other")) == 1)
    assert dataset[450] == RECORDS[450]
    name = f"c4/{SHARD.format(3)}"
    server.objects.tamper("bucket", name, "replace")
    with pytest.raises(CorruptShardError, match=f"(?s)gs://bucket/{name}.*crc32c"):
        open_c4(tmp_path / "third")[500]
    assert open_c4(tmp_path)[ORDER] == EXPECTED
    # Written again with other content, the dataset is another one.
    files = [text_records(400, seed=5), [], *FILES[2:]]
    server.objects.buckets["bucket"].clear()
    upload(server, convert(tmp_path / "again", files), "c4")
    again = open_c4(tmp_path)
    assert again[:400] == files[0]
    assert again.facts.cache.hits == 0


def test_a_shard_that_is_replaced_while_it_is_fetched_gets_no_copy(
    server: GcsServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_c4(tmp_path)
    server.fail("replace", "media", name=SHARD.format(3), skip=2)
    with caplog.at_level(logging.WARNING):
        assert dataset[[500]] == [RECORDS[500]]
        until(lambda: caplog.text.count("no copy of gs://") == 3)
    assert "written again" in caplog.text
    assert not copies(tmp_path)


@pytest.mark.slow
def test_a_disk_that_is_full_stops_nothing(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    # As a disk that has room for the indexes, and for no shard.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    script = tmp_path / "script.py"
    script.write_text(
        f"{limit}\n{WATCH.format(then='time.sleep(0.5)')}"
        "assert len(dataset[:]) == len(dataset)\nprint(dataset.facts.cache)"
    )
    command = [sys.executable, str(script), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "hits=0" in done.stdout
    assert "no copies of shards in" in done.stderr
    assert "File too large" in done.stderr
    assert not copies(tmp_path)
    assert not list((tmp_path / "cache").rglob("*.tmp"))


@pytest.mark.slow
def test_a_server_that_is_down_stops_nothing_that_has_copies(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    dataset = open_c4(tmp_path, read_options=IMPATIENT)
    assert dataset[:400] == RECORDS[:400]
    until(lambda: len(copies(tmp_path)) == 1)
    server.go_down()
    assert dataset[:400] == RECORDS[:400]
    with pytest.raises(StorageError, match="gs://bucket/c4"):
        dataset[450]
    server.come_up()
    filled(dataset, tmp_path)


def test_a_worker_without_its_cache_goes_on(
    server: GcsServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_c4(tmp_path)
    assert dataset[ORDER] == EXPECTED
    data = pickle.dumps(dataset)
    lock = tmp_path / "cache" / "shards" / "lock"
    lock.unlink()
    lock.mkdir()
    with caplog.at_level(logging.WARNING):
        again = pickle.loads(data)
    assert "without local copies" in caplog.text
    assert again[ORDER] == EXPECTED
