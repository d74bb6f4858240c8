"""Bodies that arrive a byte at a time, and answers that are none of the service's.

Every request to a bucket ends in time; what is retried is.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.lookup import storage_for
from tests.servers.gcs_server import GcsServer

SMALL = random.Random(1).randbytes(100_000)
# Three requests of a resumable upload.
LARGE = np.random.default_rng(2).bytes(5 << 18)
# A byte takes this long: the shortest answer takes far longer than the limits.
EACH = 0.2


@pytest.fixture
def server(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> GcsServer:
    monkeypatch.setenv("GRISTMILL_GCS_TIMEOUT_SECONDS", "0.5")
    return server


@pytest.fixture
def impatient(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what ends with an error."""
    monkeypatch.setenv("GRISTMILL_GCS_TIMEOUT_SECONDS", "0.3")
    monkeypatch.setenv("GRISTMILL_GCS_DEADLINE_SECONDS", "1")


SILENT = "no success in 1 seconds; last: no complete answer in 0.3 seconds"


def ended(call: Callable[[], object]) -> object:
    """Returns what a call returns; fails where it does not end."""
    return daemon_call(call, thread_name="call").result(60)


def refused(call: Callable[[], object]) -> str:
    """Returns the message of a call that ends with an error."""
    with pytest.raises(StorageError) as raised:
        ended(call)
    return re.sub(r"\s+", " ", str(raised.value))


CALLS: dict[str, Callable[[GcsStorage], object]] = {
    "list": lambda storage: storage.match("gs://in/*"),
    "stat": lambda storage: storage.stat("gs://in/a"),
    "media": lambda storage: storage.read("gs://in/a"),
    "insert": lambda storage: storage.write("gs://in/b", SMALL, replaces=""),
    "start": lambda storage: storage.write("gs://in/b", LARGE, replaces=""),
    "chunk": lambda storage: storage.write("gs://in/b", LARGE, replaces=""),
    "delete": lambda storage: storage.delete("gs://in/a"),
}
WITHOUT_BODY = {"start", "delete"}  # Their answers.


@pytest.mark.parametrize("operation", CALLS)
def test_a_request_that_trickles_is_sent_again(
    server: GcsServer, operation: str
) -> None:
    server.objects.put("in", "a", SMALL)
    server.fail("drip", operation, seconds=EACH)
    result = ended(lambda: CALLS[operation](storage_for("gs://in")))
    assert not server.faults[0].times
    if operation == "media":
        assert result == SMALL
    if operation in ("insert", "start", "chunk"):
        written = SMALL if operation == "insert" else LARGE
        assert server.objects.buckets["in"]["b"].data == written


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("operation", sorted(CALLS.keys() - WITHOUT_BODY))
def test_what_always_trickles_is_an_error(server: GcsServer, operation: str) -> None:
    server.objects.put("in", "a", SMALL)
    server.fail("drip", operation, seconds=EACH, times=999)
    message = refused(lambda: CALLS[operation](storage_for("gs://in")))
    assert "gs://in/" in message
    assert SILENT in message
    assert "to do: check network" in message


# Answers of something else, such as a proxy.

HTML = (200, "text/html", "<!DOCTYPE html>\n<p>Sign in to this network")
JSON = "application/json"
OTHERS = {
    "page": HTML,
    "page for a missing object": (404, *HTML[1:]),
    "nothing": (200, JSON, ""),
    "no content": (204, JSON, ""),
    "list": (200, JSON, "[]"),
    "null": (200, JSON, "null"),
    "text": (200, JSON, '"x"'),
    "half a document": (200, JSON, '{"items": ['),
    "items that are none": (200, JSON, '{"items": 3}'),
    "items without names": (200, JSON, '{"items": [{}]}'),
    "no JSON": (200, "application/octet-stream", "\x00\x01"),
    "an error of another form": (503, JSON, '{"error": "unavailable"}'),
    "an error that is a list": (503, JSON, "[3]"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("operation", CALLS)
def test_an_answer_of_something_else_is_asked_for_again(
    server: GcsServer, operation: str, other: str
) -> None:
    server.objects.put("in", "a", SMALL)
    server.fail("other", operation, answer=OTHERS[other])
    result = CALLS[operation](storage_for("gs://in"))
    assert not server.faults[0].times
    if operation in ("list", "stat"):
        found = storage_for("gs://in").stat("gs://in/a")
        assert result == ([found] if operation == "list" else found)
    elif operation == "media":
        assert result == SMALL
    elif operation != "delete":
        written = SMALL if operation == "insert" else LARGE
        assert server.objects.buckets["in"]["b"].data == written
    elif OTHERS[other][2]:  # With no text it is the answer to a deletion.
        assert not server.objects.buckets["in"]


@pytest.mark.parametrize("operation", ["list", "stat"])
@pytest.mark.parametrize(
    "about",
    [
        {"generation": "1"},
        {"size": "1"},
        {"size": "many", "generation": "1"},
        {"size": "1", "generation": "1", "crc32c": "?"},
        {"size": "1", "generation": "1", "crc32c": 3},
        {"size": [1], "generation": "1"},
    ],
)
def test_objects_that_are_not_described_are_an_error(
    server: GcsServer, operation: str, about: dict[str, object]
) -> None:
    about = {"name": "a", **about}
    text = json.dumps(about if operation == "stat" else {"items": [about]})
    server.fail("other", operation, answer=(200, JSON, text))
    message = refused(lambda: CALLS[operation](storage_for("gs://in")))
    assert "gs://in/a" in message
    assert "numbers for size and generation" in message
