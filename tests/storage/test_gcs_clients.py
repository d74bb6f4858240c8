"""The test server under other clients: what gristmill writes, they all read the same.

They are the check of the server: each has its own idea of what the service says.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import google_crc32c
import pytest

from gristmill.dataset.storage.lookup import storage_for
from tests.support.gcs_server import GcsServer
from tests.support.records import array_record_bytes, text_records

NAMES = ("c4/plain", "c4/with blank #1 [x] é", "c4/deep/er")
DATA = {name: name.encode() * 5000 for name in NAMES}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.page_size = 2
        for name, data in DATA.items():
            storage_for("gs://bucket").write(f"gs://bucket/{name}", data, replaces="")
        yield server


def test_tensorstore(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # It looks at its environment once: a process of its own.
    pytest.importorskip("tensorstore")
    code = """
import json, sys, tensorstore as ts
store = ts.KvStore.open({"driver": "gcs", "bucket": "bucket"}).result()
names = [key.decode() for key in store.list().result()]
reads = {name: store.read(name).result().value.decode() for name in names}
json.dump(reads, sys.stdout)
"""
    assert json.loads(_python(server, code)) == {
        name: data.decode() for name, data in DATA.items()
    }


def test_array_record(server: GcsServer, tmp_path: pathlib.Path) -> None:
    """The official reader knows gs:// by itself."""
    records = text_records(300)
    shard = array_record_bytes(records, options="group_size:4", folder=str(tmp_path))
    storage_for("gs://bucket").write("gs://bucket/c4/shard.array_record", shard)
    code = """
import sys
from array_record.python.array_record_module import ArrayRecordReader
reader = ArrayRecordReader("gs://bucket/c4/shard.array_record")
assert reader.ok()
sys.stdout.buffer.write(b"".join(reader.read_all()))
"""
    assert _python(server, code) == b"".join(records)


def test_beam(server: GcsServer) -> None:
    """Copies by rewriting, and deletes in batches."""
    from apache_beam.io.gcp.gcsio import GcsIO
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    # It would look for credentials for 23 seconds.
    client = Client(project="p", credentials=AnonymousCredentials())
    gcs = GcsIO(storage_client=client)
    assert dict(gcs.list_files("gs://bucket/c4/")) == {
        f"gs://bucket/{name}": len(data) for name, data in DATA.items()
    }
    with gcs.open(f"gs://bucket/{NAMES[1]}") as file:
        assert file.read() == DATA[NAMES[1]]
    gcs.copy(f"gs://bucket/{NAMES[0]}", "gs://bucket/copy")
    assert storage_for("gs://bucket").read("gs://bucket/copy") == DATA[NAMES[0]]
    deleted = gcs.delete_batch(["gs://bucket/copy", f"gs://bucket/{NAMES[2]}"])
    assert [error for _, error in deleted] == [None, None]
    assert set(server.objects.buckets["bucket"]) == set(NAMES[:2])


def test_google_cloud_storage(server: GcsServer) -> None:
    """What we do not use of the library that we use."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    client = Client(project="p", credentials=AnonymousCredentials())
    bucket = client.bucket("bucket")
    blob = bucket.blob(NAMES[0])
    assert blob.download_as_bytes() == DATA[NAMES[0]]  # It compares the checksum.
    bucket.blob("joined").compose([bucket.blob(name) for name in NAMES])
    joined = bucket.get_blob("joined")
    assert joined is not None
    expected = google_crc32c.Checksum(b"".join(DATA.values())).digest()
    assert joined.download_as_bytes() == b"".join(DATA.values())
    assert base64.b64decode(joined.crc32c) == expected
    with client.batch():
        for name in NAMES:
            bucket.blob(name).delete()
    assert list(server.objects.buckets["bucket"]) == ["joined"]


def _python(server: GcsServer, code: str) -> bytes:
    environment = {
        **os.environ,
        "TENSORSTORE_GCS_HTTP_URL": server.url,
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": server.url,
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
