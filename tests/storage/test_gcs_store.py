"""Cloud Storage over real HTTP: what only objects do, uploads, faults, refusals."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    InputError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.storage.base import Content
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.gcs_connection import emulator_url
from gristmill.dataset.storage.lookup import delete_all, storage_for
from gristmill.dataset.storage.prefetch_reader import PrefetchReader
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.commands.main import main
from gristmill.pipelines.convert import convert
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.servers.gcs_server import GcsServer
from tests.support.records import frames_of, text_records

DATA = random.Random(1).randbytes(300_000)
K256 = 256 << 10
LARGE = random.Random(3).randbytes(5 * K256 + 5)  # Three pieces.
A, C = "gs://bucket/a", "gs://bucket/c"

pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.fixture
def storage(server: GcsServer) -> GcsStorage:
    """A storage that asks once for what a busy machine answers late."""
    return GcsStorage(timeout_seconds=30, deadline_seconds=60)


# What only objects do.


def test_what_pretends_to_be_a_directory_is_no_file(
    server: GcsServer, storage: GcsStorage
) -> None:
    server.objects.put("bucket", "in/", b"")
    storage.write("gs://bucket/in/a", DATA)
    for found in (
        storage.match("gs://bucket/in/*"),
        storage.match("gs://bucket/**"),
        storage.list("gs://bucket/in"),
    ):
        assert found == [storage.stat("gs://bucket/in/a")]
        assert found[0].crc32c == google_crc32c.value(DATA)
    delete_all(storage.scan("gs://bucket/in", deep=True))
    assert list(server.objects.buckets["bucket"]) == ["in/"]


def test_encoded_objects_come_as_they_are_stored(
    server: GcsServer, storage: GcsStorage
) -> None:
    stored = gzip.compress(DATA)
    server.objects.put("bucket", "a", stored, encoding="gzip")
    assert storage.read(A) == stored
    assert storage.read(A, 10, 99) == stored[10:99]
    with storage.open(A, offset=5) as file:
        assert file.read() == stored[5:]


def test_the_storage_follows_the_configured_server(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage_for("gs://other/b") is storage_for(A)
    with GcsServer("bucket") as second:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", second.url)
        storage_for(A).write(A, b"x")
        assert list(second.objects.buckets["bucket"]) == ["a"]
    assert not server.objects.buckets["bucket"]


@pytest.mark.parametrize("deleted", [False, True])
def test_an_object_that_is_replaced_while_it_is_read_is_named(
    server: GcsServer, storage: GcsStorage, deleted: bool
) -> None:
    storage.block_bytes = 10_000
    generation = server.objects.put("bucket", "a", DATA)
    with storage.open(A) as file:
        assert file.read(5) == DATA[:5]
        server.objects.tamper("bucket", "a", "remove" if deleted else "replace")
        message = f"(?s){A}.*version {generation}"
        with pytest.raises(StorageChangedError, match=message):
            file.read()


def test_a_known_range_is_requested_at_once() -> None:
    """With version and end known, the second request need not wait for the first."""
    barrier = threading.Barrier(4)

    def fetch(begin: int, stop: int, version: str | None) -> Content:
        if begin < 40:
            barrier.wait(60)
        return Content(DATA[begin:stop], "7", 100)

    with PrefetchReader(fetch, end=100, version="7", block_bytes=10) as reader:
        assert reader.read() == DATA[:100]


def test_a_size_that_is_left_out_is_0(server: GcsServer, storage: GcsStorage) -> None:
    """As some servers do for empty objects; consoles make such for directories."""
    for name, data in (("d/", b""), ("d/empty", b""), ("d/full", DATA)):
        server.objects.put("bucket", name, data)
    server.objects.leaves_out_zeros = True
    found = storage.list("gs://bucket/d")
    assert [info.size_bytes for info in found] == [0, len(DATA)]
    assert storage.stat("gs://bucket/d/empty") == found[0]
    storage.write("gs://bucket/d/other", b"", replaces="")
    item = '{"items": [{"name": "a", "generation": "1", "crc32c": "AAAAAQ=="}]}'
    server.fail("other", "list", answer=(200, "application/json", item))
    with pytest.raises(StorageError, match="does not describe objects"):
        storage.list("gs://bucket/d")


# Uploads arrive whole, or end with an error.

FAULTS: dict[str, list[dict[str, Any]]] = {
    "damaged twice": [{"kind": "flip", "times": 2}],
    "a part of the first piece": [{"kind": "part", "after_bytes": K256}],
    "a part of a later piece": [{"kind": "part", "after_bytes": K256, "skip": 1}],
    "a part of the last piece": [{"kind": "part", "after_bytes": K256, "skip": 2}],
    "a part of every piece": [{"kind": "part", "after_bytes": K256, "times": 4}],
    "nothing of a piece": [{"kind": "part", "after_bytes": 0, "skip": 1}],
    "no Range": [{"kind": "forget", "skip": 1}],
    "no Range at the last piece": [{"kind": "forget", "skip": 2}],
    "the session is gone": [{"kind": "gone"}],
    "the session is gone later": [{"kind": "gone", "skip": 2}],
    "410": [{"kind": "410", "skip": 1}],
    "404": [{"kind": "404", "skip": 1}],
    "the session is gone when it is asked for": [
        {"kind": "503", "skip": 1},
        {"kind": "gone"},
    ],
    "more is kept than was sent": [
        {"kind": "part", "headers": {"Range": f"bytes=0-{1 << 20}"}, "after_bytes": 1}
    ],
    "all is kept, and it is no object": [
        {
            **{"kind": "part", "after_bytes": 1, "skip": 2},
            "headers": {"Range": f"bytes=0-{len(LARGE) - 1}"},
        }
    ],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_the_whole_file_arrives(
    server: GcsServer, storage: GcsStorage, tmp_path: pathlib.Path, faults
) -> None:
    (tmp_path / "shard").write_bytes(LARGE)
    server.fail("flip", "insert", times=2)
    for fault in faults:
        server.fail(operation="chunk", **fault)
    storage.publish(str(tmp_path / "shard"), A, replaces="")
    storage.write(C, DATA)
    assert not any(fault.times for fault in server.faults)
    server.fail("flip", "media", name="c")
    for path, data in ((A, LARGE), (C, DATA)):
        assert storage.read(path) == data
        assert storage.stat(path).crc32c == google_crc32c.value(data)


@pytest.mark.parametrize("kind", ["gone", "forget", "410", "503", "part", "flip"])
def test_an_upload_ends_with_the_deadline(server: GcsServer, kind: str) -> None:
    storage = GcsStorage(timeout_seconds=1, deadline_seconds=1)
    server.fail(kind, "chunk", skip=1, times=10**6, after_bytes=1)
    server.fail("flip", "insert", times=10**6)
    begin = time.monotonic()
    for data, says in ((LARGE, "crc32c" if kind == "flip" else ""), (DATA, "crc32c")):
        with pytest.raises(StorageError, match=rf"(?s){A}.*{says}"):
            storage.write(A, data)
    assert time.monotonic() - begin < 100
    assert not server.objects.buckets["bucket"]


def test_an_object_that_holds_other_bytes_is_told(
    server: GcsServer, storage: GcsStorage
) -> None:
    server.objects.put("bucket", "c", DATA[::-1])
    about = json.dumps(server.objects.resource("bucket", "c"))
    server.fail("other", "insert", answer=(200, "application/json", about))
    with pytest.raises(StorageError, match="does not hold what was written"):
        storage.write(A, DATA)


def test_conflicts_of_uploads(server: GcsServer, storage: GcsStorage) -> None:
    """A reply that is lost is told apart; what is there is not replaced."""
    for name in ("ours", "theirs"):
        server.fail("lost", "insert", name=name)
    server.objects.put("bucket", "theirs", b"theirs")
    storage.write("gs://bucket/ours", b"ours", replaces="")
    for data in (b"ours", LARGE):
        server.fail("gone", "chunk")
        with pytest.raises(StorageChangedError, match="changed while"):
            storage.write("gs://bucket/theirs", data, replaces="")
    assert server.objects.buckets["bucket"]["theirs"].data == b"theirs"
    server.fail("412", "start")
    with pytest.raises(StorageChangedError, match=r"(?s)refusal \(412\).*none at a s"):
        storage.write("gs://bucket/none", LARGE, replaces="")
    server.fail("404", "start", message="The specified bucket does not exist.")
    with pytest.raises(StorageError, match="bucket does not exist"):
        storage.write(C, LARGE)


# Answers of every kind.


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation", ["stat", "media", "insert", "start", "chunk", "list", "delete"]
)
def test_a_server_is_left_alone_as_long_as_it_asks(
    server: GcsServer, operation: str
) -> None:
    def seconds(deadline_seconds: float, retry_after: str) -> float:
        storage = GcsStorage(timeout_seconds=30, deadline_seconds=deadline_seconds)
        server.fail("503", operation, headers={"Retry-After": retry_after})
        begin = time.monotonic()
        storage.write(A, DATA if operation == "insert" else LARGE)
        assert storage.stat(A) is not None
        storage.read(A, 0, 9)
        assert storage.list("gs://bucket")
        storage.delete(A)
        assert not server.faults[-1].times
        return time.monotonic() - begin

    assert seconds(60, "2") >= 2
    # But there is another try before the deadline.
    assert seconds(4, "999") < 60


WRITES: list[Callable[[GcsStorage], object]] = [
    lambda storage: storage.write(A, DATA),
    lambda storage: storage.write(A, LARGE),
    lambda storage: storage.delete(A),
]
CALLS: list[Callable[[GcsStorage], object]] = [
    lambda storage: storage.read(A),
    lambda storage: storage.stat(A),
    lambda storage: storage.match("gs://bucket/*"),
    lambda storage: storage.open(A),
    *WRITES,
]


@pytest.mark.parametrize(
    ("status", "message", "cure"),
    [
        ("403", "bot@x does not have storage.objects.get access", "objectUser"),
        ("401", "credentials", "gcloud auth application-default login"),
        ("400", "Some reason", "run the same command again"),
        # These are no questions of roles.
        (
            "403",
            "Object 'bucket/a' is subject to bucket's retention policy or object "
            "retention and cannot be deleted or overwritten until 2027-01-01",
            "wait until then, or choose another output",
        ),
        (
            "403",
            "Object 'bucket/a' is under active Temporary hold and cannot be deleted, "
            "overwritten or archived until hold is removed.",
            "release the hold, or choose another output",
        ),
    ],
)
def test_a_refusal_is_told_with_its_reason(
    server: GcsServer, storage: GcsStorage, status: str, message: str, cure: str
) -> None:
    server.objects.put("bucket", "a", DATA)
    server.fail(status, times=99, message=message)
    begin = time.monotonic()
    for call in WRITES if "choose" in cure else CALLS:
        with pytest.raises(StorageError) as caught:
            call(storage)
        assert "gs://bucket/" in str(caught.value)
        assert message[:40] in str(caught.value)
        assert cure in str(caught.value)
        assert ("role" in str(caught.value)) == (cure == "objectUser")
    assert time.monotonic() - begin < 100  # Not at the deadline.


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


def test_missing_credentials_are_named_at_once(tmp_path: pathlib.Path) -> None:
    # In a process of its own: the library looks at its environment when imported.
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("GOOGLE_")},
        **{"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)},
        **{"NO_GCE_CHECK": "true", "STORAGE_EMULATOR_HOST": ""},
    }
    code = (
        "from gristmill.dataset.storage.lookup import storage_for\n"
        "storage_for('gs://bucket/a').read('gs://bucket/a')"
    )
    command = [sys.executable, "-c", code]
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "StorageError: cannot find credentials" in done.stderr
    assert "gcloud auth application-default login" in done.stderr
    assert time.monotonic() - begin < 60


def test_a_missing_client_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gcs", "gcs_connection"):
        monkeypatch.delitem(sys.modules, f"gristmill.dataset.storage.{name}")
    monkeypatch.setitem(sys.modules, "google.cloud.storage.retry", None)
    with pytest.raises(StorageError, match=r"pip install 'gristmill\[gcs\]'"):
        storage_for(A)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        *(("", None), (" ", None)),
        *(
            (text, "http://localhost:4443")
            for text in ("http://localhost:4443//", "localhost:4443", "localhost:4443/")
        ),
        ("https://storage.test", "https://storage.test"),
        ("[::1]:4443", "http://[::1]:4443"),
        ("http://proxy:80/storage-of-tests/", "http://proxy:80/storage-of-tests"),
        *((bad, "") for bad in ("ftp://x", "http://", ":4443", "host:port")),
        *((bad, "") for bad in ("http://[::1", "x?a=b")),
    ],
)
def test_addresses(monkeypatch: pytest.MonkeyPatch, text: str, url: str | None) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", text)
    if url == "":
        with pytest.raises(InputError, match="STORAGE_EMULATOR_HOST is not an address"):
            storage_for("gs://bucket")
    else:
        assert emulator_url() == url


# Commands.


@pytest.mark.slow
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_bucket_is_a_directory(server: GcsServer, slash: str, capsys) -> None:
    """Without a path below it, in every command, and where there is none."""
    server.objects.put("in", "p.tfrecord", frames_of(text_records(30)))
    for command, code, said in (
        ("plan gs://in", 0, "30"),
        ("convert gs://in gs://out --workers 1", 0, "30 records"),
        ("verify gs://out --workers 1", 0, "whole; 30 records"),
        ("inspect gs://out", 0, "at gs://"),
        ("head gs://out -n 1", 0, "record 0: "),
        ("doctor gs://out", 0, "gs://"),
        ("append gs://out gs://in --workers 1", 0, "nothing to do"),
        (
            "convert gs://in/p.tfrecord gs://in --workers 1",
            2,
            "directory of its inputs",
        ),
        ("index gs://in", 2, "not an ArrayRecord file"),
        ("index gs://out", 2, "is a dataset with this split already"),
        ("verify gs://in", 3, "not a committed dataset"),
        *((f"{what} gs://none", 1, "not exist") for what in ("verify", "doctor")),
        ("convert gs://none gs://out/x", 1, "bucket does not exist"),
    ):
        words = [w + slash if w.count("/") == 2 else w for w in command.split()]
        try:
            ended: object = main(words)
        except SystemExit as e:
            ended = e.code
        shown = "".join(capsys.readouterr())
        assert (ended or 0) == code, shown
        assert said in shown, (command, shown)
    assert set(server.objects.buckets["in"]) == {"p.tfrecord"}


@pytest.mark.slow
def test_commands_make_few_requests_a_shard(server: GcsServer) -> None:
    """None that an earlier answer gives."""
    for number in range(2):
        data = frames_of(text_records(300, seed=number))
        server.objects.put("in", f"part-{number}.tfrecord", data)

    def requests() -> list[tuple[str, str]]:
        """Takes those since the last call, but those for inputs."""
        found = [(kind, name) for kind, name, _ in server.log if "part-" not in name]
        server.log.clear()
        return found

    counts = []
    for shards in (2, 10):
        output = f"gs://out/c4-{shards}"
        for count, overwrite in ((shards, False), (shards + 1, True), (shards, True)):
            plan = PlanOptions(kind="num_shards", value=count)
            job = ConversionJob(
                inputs=("gs://in/*.tfrecord",), output=output, name="c4", plan=plan
            )
            convert([job], workers=1, overwrite=overwrite)
            made = requests()
            counts.append(len(made))
            # Before the work is described, and before it is written.
            reads = made.count(("media", f"c4-{shards}/dataset.json"))
            assert overwrite or reads == 2
        assert verify(output, workers=1).findings == ()
        counts.append(len(requests()))
    first, _, replaced, verified = (
        (b - a) / 8 for a, b in zip(counts[:4], counts[4:], strict=True)
    )
    # Two writes, a look at the owner for each, one for the index; where files are
    # replaced, each of them is copied and deleted, and the old ones are.
    assert first <= 6
    assert replaced <= 14
    # The index, the end of the shard, which says size and generation, and all of it.
    assert verified == 3
    batches = loader.global_batches(loader.open(output), batch_size=2)
    assert "gs://in/part-" in str(batches.locate(0, 0))
    # It is told without a list that is not there.
    assert not [name for _, name in requests() if "errors/" in name]
