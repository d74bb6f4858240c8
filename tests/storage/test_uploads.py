"""Uploads in pieces arrive whole, or end with an error."""

from __future__ import annotations

import pathlib
import random
import time
from typing import Any

import google_crc32c
import pytest

from gristmill.dataset.base.errors import StorageChangedError, StorageError
from gristmill.dataset.storage.gcs import GcsStorage
from tests.servers.gcs_server import GcsServer

K256 = 256 << 10
DATA = random.Random(3).randbytes(5 * K256 + 5)  # Three pieces.


pytestmark = pytest.mark.usefixtures("small_pieces")


FAULTS: dict[str, list[dict[str, Any]]] = {
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
            "kind": "part",
            "headers": {"Range": f"bytes=0-{len(DATA) - 1}"},
            "after_bytes": 1,
            "skip": 2,
        }
    ],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_the_whole_file_arrives(
    server: GcsServer, tmp_path: pathlib.Path, faults: list[dict[str, Any]]
) -> None:
    storage = GcsStorage(timeout_seconds=30, deadline_seconds=60)
    path = tmp_path / "shard"
    path.write_bytes(DATA)
    for fault in faults:
        server.fail(operation="chunk", **fault)
    storage.publish(str(path), "gs://bucket/a", replaces="")
    assert server.objects.buckets["bucket"]["a"].data == DATA
    assert not any(fault.times for fault in server.faults)
    (info,) = storage.list("gs://bucket")
    assert info.crc32c == google_crc32c.value(DATA)


@pytest.mark.parametrize("kind", ["gone", "forget", "410", "503", "part"])
def test_it_ends_with_the_deadline(server: GcsServer, kind: str) -> None:
    storage = GcsStorage(timeout_seconds=1, deadline_seconds=1)
    server.fail(kind, "chunk", skip=1, times=10**6, after_bytes=1)
    begin = time.monotonic()
    with pytest.raises(StorageError, match=r"gs://bucket/a"):
        storage.write("gs://bucket/a", DATA)
    assert time.monotonic() - begin < 60
    assert not server.objects.buckets["bucket"]


def test_a_bucket_that_goes_meanwhile_is_named(server: GcsServer) -> None:
    storage = GcsStorage(deadline_seconds=60)
    server.fail("404", "start", message="The specified bucket does not exist.")
    with pytest.raises(StorageError, match="bucket does not exist"):
        storage.write("gs://bucket/a", DATA)


def test_what_is_there_is_not_replaced(server: GcsServer) -> None:
    storage = GcsStorage(deadline_seconds=60)
    server.objects.put("bucket", "a", b"theirs")
    server.fail("gone", "chunk")
    with pytest.raises(StorageChangedError, match="changed while"):
        storage.write("gs://bucket/a", DATA, replaces="")
    server.fail("412", "start")
    with pytest.raises(
        StorageChangedError, match=r"(?s)refusal \(412\).*none at a sec"
    ):
        storage.write("gs://bucket/none", DATA, replaces="")
    assert server.objects.buckets["bucket"]["a"].data == b"theirs"
