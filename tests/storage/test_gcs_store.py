"""Cloud Storage over real HTTP: what only objects do, uploads, faults, refusals."""

import contextlib
import gzip
import json
import random
import sys
import time

import google_crc32c
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    InputError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.gcs_connection import emulator_url
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.commands.main import main
from gristmill.pipelines.convert import convert
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.servers.gcs_server import GcsServer
from tests.servers.other_server import other_server
from tests.support.records import frames_of, text_records

DATA = random.Random(1).randbytes(300_000)
K256 = 256 << 10
LARGE = random.Random(3).randbytes(5 * K256 + 5)  # Three pieces.
A, C = "gs://bucket/a", "gs://bucket/c"
ALWAYS = 10**6

pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.fixture
def storage(server):
    """A storage that asks once for what a busy machine answers late."""
    return GcsStorage(timeout_seconds=30, deadline_seconds=60)


# What only objects do.


def test_what_pretends_to_be_a_directory_is_no_file(server, storage):
    server.objects.put("bucket", "in/", b"")
    storage.write("gs://bucket/in/a", DATA)
    expected = storage.stat("gs://bucket/in/a")
    assert expected.crc32c == google_crc32c.value(DATA)
    for found in (storage.match("gs://bucket/**"), storage.list("gs://bucket/in")):
        assert found == [expected]


def test_encoded_objects_come_as_they_are_stored(server, storage):
    stored = gzip.compress(DATA)
    server.objects.put("bucket", "a", stored, encoding="gzip")
    assert storage.read(A) == stored
    assert storage.read(A, 10, 99) == stored[10:99]
    with storage.open(A, offset=5) as file:
        assert file.read() == stored[5:]


def test_the_storage_follows_the_configured_server(server, monkeypatch):
    assert storage_for("gs://other/b") is storage_for(A)
    with GcsServer("bucket") as second:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", second.url)
        storage_for(A).write(A, b"x")
        assert list(second.objects.buckets["bucket"]) == ["a"]
    assert not server.objects.buckets["bucket"]


@pytest.mark.parametrize("how", ["remove", "replace"])
def test_an_object_that_is_replaced_while_it_is_read_is_named(server, storage, how):
    storage.block_bytes = 10_000
    generation = server.objects.put("bucket", "a", DATA)
    with storage.open(A) as file:
        assert file.read(5) == DATA[:5]
        server.objects.tamper("bucket", "a", how)
        message = f"(?s){A}.*version {generation}"
        with pytest.raises(StorageChangedError, match=message):
            file.read()


def test_a_size_that_is_left_out_is_0(server, storage):
    """As some servers do for empty objects."""
    server.objects.put("bucket", "d/empty", b"")
    server.objects.leaves_out_zeros = True
    assert storage.list("gs://bucket/d") == [storage.stat("gs://bucket/d/empty")]
    storage.write("gs://bucket/d/other", b"", replaces="")
    item = '{"items": [{"name": "a", "generation": "1", "crc32c": "AAAAAQ=="}]}'
    server.fail("other", "list", answer=(200, "application/json", item))
    with pytest.raises(StorageError, match="does not describe objects"):
        storage.list("gs://bucket/d")


# Uploads arrive whole, or end with an error.

FAULTS = {
    "damaged twice": [{"kind": "flip", "times": 2}],
    **{
        f"a part of piece {skip}": [{"kind": "part", "after_bytes": K256, "skip": skip}]
        for skip in range(3)
    },
    "a part of every piece": [{"kind": "part", "after_bytes": K256, "times": 4}],
    "nothing of a piece": [{"kind": "part", "after_bytes": 0, "skip": 1}],
    **{
        f"{kind} at piece {skip}": [{"kind": kind, "skip": skip}]
        for kind, skip in (
            *(("forget", 1), ("forget", 2), ("gone", 0), ("gone", 2)),
            *(("410", 1), ("404", 1)),
        )
    },
    "gone when it is asked for": [{"kind": "503", "skip": 1}, {"kind": "gone"}],
    **{
        f"{size} are kept": [
            {
                **{"kind": "part", "after_bytes": 1, "skip": skip},
                "headers": {"Range": f"bytes=0-{size - 1}"},
            }
        ]
        for size, skip in (((1 << 20) + 1, 0), (len(LARGE), 2))
    },
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_the_whole_file_arrives(server, storage, tmp_path, faults):
    (tmp_path / "shard").write_bytes(LARGE)
    server.fail("flip", "insert", times=2)
    for fault in faults:
        server.fail(operation="chunk", **fault)
    storage.publish(str(tmp_path / "shard"), A, replaces="")
    storage.write(C, DATA)
    assert not any(fault.times for fault in server.faults)
    for kind in ("flip", "short"):
        server.fail(kind, "media", name="c")
    for path, data in ((A, LARGE), (C, DATA)):
        assert storage.read(path) == data
        assert storage.stat(path).crc32c == google_crc32c.value(data)


@pytest.mark.parametrize("kind", ["gone", "forget", "410", "503", "part", "flip"])
def test_an_upload_ends_with_the_deadline(server, kind):
    storage = GcsStorage(timeout_seconds=1, deadline_seconds=1)
    server.fail(kind, "chunk", skip=1, times=ALWAYS, after_bytes=1)
    server.fail("flip", "insert", times=ALWAYS)
    begin = time.monotonic()
    for data, says in ((LARGE, "crc32c" if kind == "flip" else ""), (DATA, "crc32c")):
        with pytest.raises(StorageError, match=rf"(?s){A}.*{says}"):
            storage.write(A, data)
    assert time.monotonic() - begin < 100
    assert not server.objects.buckets["bucket"]


def test_conflicts_of_uploads(server, storage):
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
    server.objects.put("bucket", "c", DATA[::-1])
    about = json.dumps(server.objects.resource("bucket", "c"))
    server.fail("other", "insert", answer=(200, "application/json", about))
    with pytest.raises(StorageError, match="does not hold what was written"):
        storage.write(A, DATA)


# Answers of every kind.


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation", ["stat", "media", "insert", "start", "chunk", "list", "delete"]
)
def test_a_server_is_left_alone_as_long_as_it_asks(server, operation):
    def seconds(deadline_seconds, retry_after):
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


WRITES = [
    lambda storage: storage.write(A, DATA),
    lambda storage: storage.write(A, LARGE),
    lambda storage: storage.delete(A),
]
CALLS = [
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
        ("403", "Object is subject to bucket's retention policy", "wait until then, "),
        ("403", "Object is under active Temporary hold", "release the hold, or choose"),
    ],
)
def test_a_refusal_is_told_with_its_reason(server, storage, status, message, cure):
    server.objects.put("bucket", "a", DATA)
    server.fail(status, times=99, message=message)
    begin = time.monotonic()
    for call in WRITES if "Object" in message else CALLS:
        with pytest.raises(StorageError) as caught:
            call(storage)
        for part in ("gs://bucket/", message, cure):
            assert part in str(caught.value)
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
def test_any_body_of_any_answer(server, status, body):
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


def test_a_missing_client_library_is_named(monkeypatch):
    for name in ("gcs", "gcs_connection"):
        monkeypatch.delitem(sys.modules, f"gristmill.dataset.storage.{name}")
    monkeypatch.setitem(sys.modules, "google.cloud.storage.retry", None)
    with pytest.raises(StorageError, match=r"pip install '\.\[gcs\]'"):
        storage_for(A)


@pytest.mark.parametrize(
    ("url", "texts"),
    [
        (None, ("", " ")),
        (
            "http://localhost:4443",
            ("http://localhost:4443//", "localhost:4443", "localhost:4443/"),
        ),
        ("https://storage.test", ("https://storage.test",)),
        ("http://[::1]:4443", ("[::1]:4443",)),
        ("http://proxy:80/of-tests", ("http://proxy:80/of-tests/",)),
        ("", ("ftp://x", "http://", ":4443", "host:port", "http://[::1", "http://x?a")),
    ],
)
def test_addresses(monkeypatch, url, texts):
    for text in texts:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", text)
        if url == "":
            with pytest.raises(InputError, match="STORAGE_EMULATOR_HOST is not an add"):
                storage_for("gs://bucket")
        else:
            assert emulator_url() == url


# Commands.


COMMANDS = (
    ("plan gs://in", 0, "30"),
    ("convert gs://in gs://out", 0, "30 records"),
    ("verify gs://out", 0, "whole; 30 records"),
    ("inspect gs://out", 0, "at gs://"),
    ("head gs://out -n 1", 0, "record 0: "),
    ("doctor gs://out", 0, "gs://"),
    ("append gs://out gs://in", 0, "nothing to do"),
    ("append gs://out gs://other/b.tfrecord", 0, "20 records"),
    ("trace gs://out --batch-size 8 --step 5 --row 4", 0, "gs://in/p.tfrecord"),
    ("convert gs://in gs://out --num-shards 3 --overwrite", 0, "in 3"),
    ("pack gs://other/ids.jsonl gs://other/rows --column ids --length 16", 0, "rows"),
    ("verify gs://other/rows", 0, "whole"),
    ("convert gs://in/p.tfrecord gs://in", 2, "of its inputs"),
    ("index gs://in", 2, "not an ArrayRecord file"),
    ("index gs://out", 2, "is a dataset with this split already"),
    ("verify gs://in", 3, "not a committed dataset"),
    ("doctor gs://none", 1, "not exist"),
    ("verify gs://none", 1, "check the bucket's name"),
    ("convert gs://none gs://out/x", 1, "check the bucket's name"),
)


@pytest.mark.slow
@pytest.mark.parametrize("others", [False, True], ids=["ours", "other server"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_commands_in_buckets(server, others, slash, monkeypatch, capsys):
    """A bucket is a directory, also without a path below it."""
    with contextlib.ExitStack() as stack:
        if others:
            url = stack.enter_context(other_server("in", "out", "other"))
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        storage = storage_for("gs://in")
        for name, count in (("in/p", 30), ("other/b", 20)):
            storage.write(f"gs://{name}.tfrecord", frames_of(text_records(count)))
        storage.write("gs://other/ids.jsonl", b'{"ids": [1, 2, 3]}\n' * 50)
        for command, code, said in COMMANDS:
            if others and "doctor" in command:
                continue  # This server knows nothing of permissions.
            words = [w + slash if w.count("/") == 2 else w for w in command.split()]
            if words[0] in ("convert", "append", "verify", "pack"):
                words += ["--workers", "1"]
            try:
                ended = main(words)
            except SystemExit as e:
                ended = e.code
            shown = "".join(capsys.readouterr())
            assert (ended or 0) == code, (command, shown)
            assert said in shown, (command, shown)
        assert [info.path for info in storage.list("gs://in")] == ["gs://in/p.tfrecord"]


@pytest.mark.slow
def test_commands_make_few_requests_a_shard(server):
    """None that an earlier answer gives."""
    for number in range(2):
        data = frames_of(text_records(300, seed=number))
        server.objects.put("in", f"part-{number}.tfrecord", data)

    def requests():
        """Takes those since the last call, but those for inputs."""
        found = [(kind, name) for kind, name, _ in server.log if "part-" not in name]
        server.log.clear()
        return found

    counts = []
    for shards in (2, 10):
        output = f"gs://out/c4-{shards}"
        for count, overwrite in ((shards, False), (shards + 1, True), (shards, True)):
            plan = PlanOptions(kind="num_shards", value=count)
            inputs = ("gs://in/*.tfrecord",)
            job = ConversionJob(inputs=inputs, output=output, name="c4", plan=plan)
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
