"""gs:// paths over real HTTP (`gcs`, `connection`): reads, writes and failures."""

from __future__ import annotations

import gzip
import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable

import google_crc32c
import numpy as np
import pytest

from gristmill.dataset.base.errors import (
    InputError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.storage.base import Storage
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.gcs_connection import emulator_url
from gristmill.dataset.storage.lookup import delete_all, storage_for, version_of
from tests.servers.gcs_server import GcsServer

DATA = random.Random(1).randbytes(300_000)
# Two chunks of a resumable upload.
LARGE = np.random.default_rng(2).bytes(5 << 18)


pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.fixture
def storage(server: GcsServer) -> GcsStorage:
    """A storage that asks once for what a busy machine answers late."""
    return GcsStorage(timeout_seconds=30, deadline_seconds=60)


@pytest.fixture(params=["local", "gcs"])
def place(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, server: GcsServer
) -> str:
    return {"local": str(tmp_path), "gcs": "gs://bucket"}[request.param]


# What every storage does.

NAMES = (
    *("a.x", "b.y", "d/a.x", "d/b.x", "d/b.y", "d/e/a.x", "d/e/f/a.x", "dd/a.x"),
    *("d/with blank.x", "d/naïve ☃.x", "d/c#1.x", "d/[z].x", "d/100%.x", "d/q+1.x"),
)


MATCHES = {
    "a.x": ["a.x"],
    "*.x": ["a.x"],
    "d/b.*": ["d/b.x", "d/b.y"],
    "d*/a.x": ["d/a.x", "dd/a.x"],
    "d/**/a.x": ["d/a.x", "d/e/a.x", "d/e/f/a.x"],
    "**/*.y": ["b.y", "d/b.y"],
    "d/[ab].x": ["d/a.x", "d/b.x"],
    "d/[!a].x": ["d/b.x"],
    "d/[z].x": ["d/[z].x"],
    "d/w*k.x": ["d/with blank.x"],
    "d/*☃.x": ["d/naïve ☃.x"],
    "d/c#?.x": ["d/c#1.x"],
    "d/*+*": ["d/q+1.x"],
    "d/*%.x": ["d/100%.x"],
    "d/e/*": ["d/e/a.x"],
    "d": [],
    "nothing*": [],
}


def test_match(place: str) -> None:
    storage = storage_for(place)
    for name in NAMES:
        storage.write(f"{place}/{name}", name.encode())
    for pattern, expected in MATCHES.items():
        found = storage.match(f"{place}/{pattern}")
        assert [info.path for info in found] == [f"{place}/{name}" for name in expected]
        for info in found:
            assert storage.read(info.path) == info.path[len(place) + 1 :].encode()
            assert storage.stat(info.path) == info


def test_files_are_written_listed_and_deleted(place: str) -> None:
    storage = storage_for(place)
    folder = f"{place}/c4"
    assert storage.list(folder) == []
    assert storage.stat(f"{folder}/a") is None
    for name in ("b", "a", "sub/c", "sub/deep/d"):
        storage.write(f"{folder}/{name}", DATA[: len(name)])
    storage.write(f"{place}/c44", b"stays")
    assert [info.path for info in storage.list(folder)] == [
        f"{folder}/a",
        f"{folder}/b",
    ]
    assert [info.size_bytes for info in storage.list(f"{folder}/sub")] == [5]
    assert storage.stat(f"{folder}/sub") is None
    storage.delete(f"{folder}/a")
    storage.delete(f"{folder}/a")
    assert storage.stat(f"{folder}/a") is None
    delete_all(storage.scan(folder, deep=True))
    assert storage.match(f"{place}/**") == storage.match(f"{place}/c44")


def test_ranges_of_files(place: str) -> None:
    storage = storage_for(place)
    path = f"{place}/file"
    storage.write(path, DATA)
    for begin, end in (
        (0, 12),
        (5, 5),
        (7, 8),
        (299_990, 300_100),
        (0, None),
        (9, None),
    ):
        assert storage.read(path, begin, end) == DATA[begin:end]
    there = storage.stat(path)
    assert there is not None
    for begin, end in ((0, 12), (299_990, 300_100), (300_000, 300_001)):
        expected = DATA[begin:end], there.version, there.size_bytes
        assert storage.load(path, begin, end) == expected
    assert storage.load(f"{place}/none", 0, 1) is None
    storage.write(path, b"")
    assert storage.load(path, 0, 9) == (b"", version_of(path), 0)
    assert storage.read(path) == storage.read(path, 0, 12) == b""
    with storage.open(path) as file:
        assert file.read(10) == b""


@pytest.mark.parametrize("offset", [0, 1, 150_000, 299_999, 300_000])
def test_files_are_read_forward(place: str, offset: int) -> None:
    storage = storage_for(place)
    storage.write(f"{place}/file", DATA)
    with storage.open(f"{place}/file", offset=offset, end=200_000) as file:
        assert b"".join(iter(lambda: file.read(70_000), b"")) == DATA[offset:]


def test_a_write_replaces_only_what_was_seen(
    place: str, tmp_path: pathlib.Path
) -> None:
    storage = storage_for(place)
    path = f"{place}/file"
    storage.write(path, b"one", replaces="")
    first = version_of(path)
    storage.write(path, b"one", replaces="")
    assert version_of(path) == first
    with pytest.raises(StorageChangedError, match=r"(?s)changed while.*no file"):
        storage.write(path, b"two", replaces="")
    storage.write(path, b"two", replaces=first)
    assert version_of(path) != first
    local = tmp_path / "local"
    local.write_bytes(b"three")
    with pytest.raises(StorageChangedError, match=first):
        storage.publish(str(local), path, replaces=first)
    assert storage.read(path) == b"two"
    local.write_bytes(b"two")
    storage.publish(str(local), path, replaces=first)
    local.write_bytes(b"three")
    storage.publish(str(local), path)
    assert storage.read(path) == b"three"
    storage.delete(path)
    with pytest.raises(StorageChangedError, match=r"got: +no file"):
        storage.write(path, b"four", replaces=first)


def test_another_version_is_not_opened(place: str) -> None:
    storage = storage_for(place)
    path = f"{place}/file"
    storage.write(path, b"one")
    version = version_of(path)
    with storage.open(path, version=version) as file:
        assert file.read(9) == b"one"
    storage.write(path, b"two")
    with pytest.raises(StorageChangedError, match=version):
        storage.open(path, version=version)


def test_a_missing_file_is_named(place: str) -> None:
    storage = storage_for(place)
    with pytest.raises(StorageError, match=r"(?s)/none.*check the path"):
        storage.read(f"{place}/none")
    with pytest.raises(StorageError, match=r"(?s)/none.*check the path"):
        storage.open(f"{place}/none")


# What only objects do.


def test_what_pretends_to_be_a_directory_is_no_file(
    server: GcsServer, storage: GcsStorage
) -> None:
    server.objects.put("bucket", "in/", b"")
    server.objects.put("bucket", "in/a", b"x")
    for found in (
        storage.match("gs://bucket/in/*"),
        storage.match("gs://bucket/**"),
        storage.list("gs://bucket/in"),
    ):
        assert [info.path for info in found] == ["gs://bucket/in/a"]
    delete_all(storage.scan("gs://bucket/in", deep=True))
    assert list(server.objects.buckets["bucket"]) == ["in/"]


def test_checksums_are_those_of_the_content(storage: GcsStorage) -> None:
    storage.write("gs://bucket/a", DATA)
    found = storage.stat("gs://bucket/a")
    assert found is not None
    assert found.crc32c == google_crc32c.value(DATA)
    assert storage.list("gs://bucket") == storage.match("gs://bucket/*") == [found]


def test_encoded_objects_come_as_they_are_stored(
    server: GcsServer, storage: GcsStorage
) -> None:
    stored = gzip.compress(DATA)
    server.objects.put("bucket", "a.gz", stored, encoding="gzip")
    assert storage.read("gs://bucket/a.gz") == stored
    assert storage.read("gs://bucket/a.gz", 10, 99) == stored[10:99]
    with storage.open("gs://bucket/a.gz", offset=5) as file:
        assert file.read() == stored[5:]


def test_the_storage_follows_the_configured_server(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: Storage = storage_for("gs://bucket/a")
    assert storage_for("gs://other/b") is first
    with GcsServer("bucket") as second:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", second.url)
        storage_for("gs://bucket/a").write("gs://bucket/a", b"x")
        assert list(second.objects.buckets["bucket"]) == ["a"]
    assert not server.objects.buckets["bucket"]


# Reading ahead.


@pytest.mark.parametrize("deleted", [False, True])
def test_an_object_that_is_replaced_while_it_is_read_is_named(
    server: GcsServer,
    storage: GcsStorage,
    deleted: bool,
) -> None:
    storage.block_bytes = 10_000
    generation = server.objects.put("bucket", "a", DATA)
    with storage.open("gs://bucket/a") as file:
        assert file.read(5) == DATA[:5]
        if deleted:
            storage.delete("gs://bucket/a")
        else:
            server.objects.put("bucket", "a", DATA[::-1])
        message = f"(?s)gs://bucket/a.*version {generation}"
        with pytest.raises(StorageChangedError, match=message):
            file.read()


# Faults.


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["stat", "media", "insert", "start", "chunk"])
def test_a_server_is_left_alone_as_long_as_it_asks(
    server: GcsServer, operation: str
) -> None:
    def seconds(deadline_seconds: float, retry_after: str) -> float:
        storage = GcsStorage(timeout_seconds=30, deadline_seconds=deadline_seconds)
        server.fail("503", operation, headers={"Retry-After": retry_after})
        begin = time.monotonic()
        storage.write("gs://bucket/a", DATA if operation == "insert" else LARGE)
        assert storage.stat("gs://bucket/a") is not None
        storage.read("gs://bucket/a", 0, 9)
        assert not server.faults[-1].times
        return time.monotonic() - begin

    assert seconds(60, "2") >= 2
    # But there is another try before the deadline.
    assert seconds(4, "999") < 60


@pytest.mark.parametrize("data", [DATA, LARGE], ids=["small", "large"])
def test_what_arrives_damaged_is_sent_again(
    server: GcsServer, storage: GcsStorage, data: bytes
) -> None:
    server.fail("flip", "insert", times=2)
    server.fail("flip", "chunk", skip=1)
    storage.write("gs://bucket/a", data, replaces="")
    assert server.objects.buckets["bucket"]["a"].data == data


@pytest.mark.parametrize("data", [DATA, LARGE], ids=["small", "large"])
def test_what_always_arrives_damaged_is_refused(
    server: GcsServer, storage: GcsStorage, data: bytes
) -> None:
    server.fail("flip", "insert", times=99)
    server.fail("flip", "chunk", times=99)
    with pytest.raises(StorageError, match=r"(?s)gs://bucket/a.*crc32c"):
        storage.write("gs://bucket/a", data)
    assert not server.objects.buckets["bucket"]


def test_a_lost_reply_is_told_apart_from_a_conflict(
    server: GcsServer, storage: GcsStorage
) -> None:
    server.objects.put("bucket", "theirs", b"theirs")
    for name in ("ours", "theirs"):
        server.fail("lost", "insert", name=name)
    storage.write("gs://bucket/ours", b"ours", replaces="")
    with pytest.raises(StorageChangedError, match="changed while"):
        storage.write("gs://bucket/theirs", b"ours", replaces="")
    assert server.objects.buckets["bucket"]["theirs"].data == b"theirs"


@pytest.mark.parametrize(
    ("status", "message", "cure"),
    [
        ("403", "bot@x does not have storage.objects.get access", "objectUser"),
        ("401", "credentials", "gcloud auth application-default login"),
        ("400", "Some reason", "run the same command again"),
    ],
)
def test_a_refusal_is_told_with_its_reason(
    server: GcsServer, storage: GcsStorage, status: str, message: str, cure: str
) -> None:
    server.objects.put("bucket", "a", DATA)
    server.fail(status, times=99, message=message)
    expected = f"(?s)gs://bucket/.*{message}.*{cure}"
    for call in (
        lambda: storage.read("gs://bucket/a"),
        lambda: storage.stat("gs://bucket/a"),
        lambda: storage.match("gs://bucket/*"),
        lambda: storage.write("gs://bucket/a", DATA),
        lambda: storage.write("gs://bucket/a", LARGE),
        lambda: storage.delete("gs://bucket/a"),
        lambda: storage.open("gs://bucket/a"),
    ):
        begin = time.monotonic()
        with pytest.raises(StorageError, match=expected):
            call()
        assert time.monotonic() - begin < 50  # Not at the deadline.


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        (
            "Object 'bucket/a' is subject to bucket's retention policy or object "
            "retention and cannot be deleted or overwritten until 2027-01-01",
            "wait until then, or choose another output",
        ),
        (
            "Object 'bucket/a' is under active Temporary hold and cannot be deleted, "
            "overwritten or archived until hold is removed.",
            "release the hold, or choose another output",
        ),
    ],
)
def test_what_may_not_be_replaced_is_no_question_of_roles(
    server: GcsServer, storage: GcsStorage, message: str, cure: str
) -> None:
    server.objects.put("bucket", "a", DATA)
    server.fail("403", times=99, message=message)
    for call in (
        lambda: storage.write("gs://bucket/a", b"new"),
        lambda: storage.write("gs://bucket/a", LARGE),
        lambda: storage.delete("gs://bucket/a"),
    ):
        with pytest.raises(StorageError) as caught:
            call()
        assert cure in str(caught.value)
        assert "role" not in str(caught.value)


def test_a_size_that_is_left_out_is_0(server: GcsServer, storage: GcsStorage) -> None:
    """As some servers do for empty objects; consoles make such for directories."""
    for name, data in (("d/", b""), ("d/empty", b""), ("d/full", DATA)):
        server.objects.put("bucket", name, data)
    server.objects.leaves_out_zeros = True
    found = storage.list("gs://bucket/d")
    assert [(info.path, info.size_bytes) for info in found] == [
        ("gs://bucket/d/empty", 0),
        ("gs://bucket/d/full", len(DATA)),
    ]
    assert storage.stat("gs://bucket/d/empty") == found[0]
    storage.write("gs://bucket/d/other", b"", replaces="")
    server.fail(
        "other",
        "list",
        answer=(
            200,
            "application/json",
            '{"items": [{"name": "a", "generation": "1", "crc32c": "AAAAAQ=="}]}',
        ),
    )
    with pytest.raises(StorageError, match="does not describe objects"):
        storage.list("gs://bucket/d")


def test_missing_credentials_are_named_at_once(tmp_path: pathlib.Path) -> None:
    # In a process of its own: the library looks at its environment when imported.
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("GOOGLE_")},
        **{"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)},
        "NO_GCE_CHECK": "true",
    }
    environment.pop("STORAGE_EMULATOR_HOST", None)
    code = (
        "from gristmill.dataset.storage.lookup import delete_all, storage_for\n"
        "storage_for('gs://bucket/a').read('gs://bucket/a')"
    )
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert "StorageError: cannot find credentials" in done.stderr
    assert "gcloud auth application-default login" in done.stderr
    assert time.monotonic() - begin < 60


def test_a_missing_client_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gcs", "gcs_connection"):
        monkeypatch.delitem(sys.modules, f"gristmill.dataset.storage.{name}")
    monkeypatch.setitem(sys.modules, "google.cloud.storage.retry", None)
    with pytest.raises(StorageError, match=r"pip install 'gristmill\[gcs\]'"):
        storage_for("gs://bucket/a")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", None),
        (" ", None),
        ("http://localhost:4443", "http://localhost:4443"),
        ("localhost:4443", "http://localhost:4443"),
        ("localhost:4443/", "http://localhost:4443"),
        ("http://localhost:4443//", "http://localhost:4443"),
        ("https://storage.test", "https://storage.test"),
        ("[::1]:4443", "http://[::1]:4443"),
        ("http://proxy:80/storage-of-tests/", "http://proxy:80/storage-of-tests"),
    ],
)
def test_addresses(monkeypatch: pytest.MonkeyPatch, text: str, url: str | None) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", text)
    assert emulator_url() == url


@pytest.mark.parametrize(
    "text", ["ftp://x", "http://", ":4443", "host:port", "http://[::1", "x?a=b"]
)
def test_what_is_no_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", text)
    with pytest.raises(InputError, match="STORAGE_EMULATOR_HOST is not an address"):
        storage_for("gs://bucket")


CALLS: list[Callable[[GcsStorage], object]] = [
    lambda storage: storage.read("gs://bucket/a"),
    lambda storage: storage.stat("gs://bucket/a"),
    lambda storage: storage.list("gs://bucket"),
    lambda storage: storage.write("gs://bucket/c", b"x"),
    lambda storage: storage.write("gs://bucket/c", LARGE),
    lambda storage: storage.delete("gs://bucket/a"),
]


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize(
    "body",
    [
        *("", "<html>", "null", "[]", "[1]", "{}", '{"error": 1}', '{"error": {}}'),
        '{"error": {"message": [1], "errors": 1, "details": [1]}}',
        '{"error": {"message": "m", "errors": [1], "details": 1}}',
        '{"kind": "storage#object", "size": [], "generation": -1, "crc32c": 1}',
        "[" * 100_000,
    ],
)
def test_any_body_of_any_answer(server: GcsServer, status: int, body: str) -> None:
    storage = GcsStorage(timeout_seconds=60, deadline_seconds=0.01)
    server.fail("other", answer=(status, "application/json", body), times=99)
    for call in CALLS:
        try:
            call(storage)
        except StorageError as e:
            assert "gs://bucket" in str(e)  # noqa: PT017
        else:
            # This server says that there is none, or that it is deleted.
            assert status == 200, call
