"""Cloud Storage over real HTTP: what only objects do, uploads, faults, refusals."""

import gzip
import json
import random
import sys
import time

import google_crc32c
import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset import InputError, StorageChangedError, StorageError
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.gcs_connection import emulator_url
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.convert import convert
from tests.support.conversion import job_of
from tests.support.records import frames_of, text_records
from tests.support.told import told

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


def test_a_size_that_is_left_out_is_0(server, storage):
    """As some servers do for empty objects."""
    server.objects.put("bucket", "d/empty", b"")
    server.objects.leaves_out_zeros = True
    assert storage.list("gs://bucket/d") == [storage.stat("gs://bucket/d/empty")]
    storage.write("gs://bucket/d/other", b"", replaces="")


# Uploads arrive whole, or end with an error.


def test_conflicts_of_uploads(server, storage):
    """A reply that is lost is told apart; what is there is not replaced."""
    for name in ("ours", "theirs"):
        server.fail("lost", "insert", name=name)
    server.objects.put("bucket", "theirs", b"theirs")
    storage.write("gs://bucket/ours", b"ours", replaces="")
    for data in (b"ours", LARGE):
        server.fail("gone", "chunk")
        with told(StorageChangedError, "changed while"):
            storage.write("gs://bucket/theirs", data, replaces="")
    assert server.objects.buckets["bucket"]["theirs"].data == b"theirs"
    server.fail("412", "start")
    with pytest.raises(StorageChangedError, match=r"(?s)refusal \(412\).*none at a s"):
        storage.write("gs://bucket/none", LARGE, replaces="")
    server.fail("404", "start", message="The specified bucket does not exist.")
    with told(StorageError, "bucket does not exist"):
        storage.write(C, LARGE)
    server.objects.put("bucket", "c", DATA[::-1])
    about = json.dumps(server.objects.resource("bucket", "c"))
    server.fail("other", "insert", answer=(200, "application/json", about))
    with told(StorageError, "does not hold what was written"):
        storage.write(A, DATA)


# Answers of every kind.


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation", ["stat", "media", "insert", "start", "chunk", "list", "delete"]
)
@pytest.mark.parametrize(("asks", "deadline_seconds"), [("2", 60), ("999", 4)])
def test_a_server_is_left_alone_as_long_as_it_asks(
    server, operation, asks, deadline_seconds
):
    """But there is another try before the deadline."""
    storage = GcsStorage(timeout_seconds=30, deadline_seconds=deadline_seconds)
    server.fail("503", operation, headers={"Retry-After": asks})
    begin = time.monotonic()
    storage.write(A, DATA if operation == "insert" else LARGE)
    assert storage.stat(A) is not None
    storage.read(A, 0, 9)
    assert storage.list("gs://bucket")
    storage.delete(A)
    assert not server.faults[-1].times
    passed = time.monotonic() - begin
    assert passed >= 2 or asks == "999"
    assert passed < 60


def test_a_missing_client_library_is_named(monkeypatch):
    for name in ("gcs", "gcs_connection"):
        monkeypatch.delitem(sys.modules, f"gristmill.dataset.storage.{name}")
    monkeypatch.setitem(sys.modules, "google.cloud.storage.retry", None)
    with told(StorageError, "pip install '.[gcs]'"):
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
            with told(InputError, "STORAGE_EMULATOR_HOST is not an add"):
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
@pytest.mark.parametrize("slash", ["", "/"])
def test_commands_in_buckets(server, slash):
    """A bucket is a directory, also without a path below it."""
    objects = server.objects
    for bucket, name, count in (("in", "p", 30), ("other", "b", 20)):
        objects.put(bucket, f"{name}.tfrecord", frames_of(text_records(count)))
    objects.put("other", "ids.jsonl", b'{"ids": [1, 2, 3]}\n' * 50)
    for command, code, said in COMMANDS:
        words = [w + slash if w.count("/") == 2 else w for w in command.split()]
        if words[0] in ("convert", "append", "verify", "pack"):
            words += ["--workers", "1"]
        done = CliRunner().invoke(cli, words)
        assert (done.exit_code, said in done.output) == (code, True), done.output
    assert objects.buckets["in"].keys() == {"p.tfrecord"}


@pytest.mark.slow
def test_a_conversion_makes_few_requests_a_shard(server):
    """None that an earlier answer gives."""
    for number in range(2):
        data = frames_of(text_records(300, seed=number))
        server.objects.put("in", f"part-{number}.tfrecord", data)
    counts = []
    for shards in (2, 10):
        output = f"gs://out/c4-{shards}"
        job = job_of("gs://in/*.tfrecord", output, plan=("num_shards", shards))
        server.log.clear()
        convert([job], workers=1)
        made = [(kind, name) for kind, name, _ in server.log if "part-" not in name]
        counts.append(len(made))
        # Before the work is described, and before it is written.
        assert made.count(("media", f"c4-{shards}/dataset.json")) == 2
    # Two writes, a look at the owner for each, one for the index.
    assert counts[1] - counts[0] <= 6 * 8
    server.log.clear()
    batches = loader.global_batches(loader.open(output), batch_size=2)
    assert "gs://in/part-" in str(batches.locate(0, 0))
    # It is told without a list that is not there.
    assert not [name for _, name, _ in server.log if "errors/" in name]
