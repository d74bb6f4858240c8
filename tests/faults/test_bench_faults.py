"""Every fault of a service for storage, on every kind of request.

Those of Google's test bench, bodies that arrive a byte at a time, and answers that are
none of the service's. The right result within the deadline, or an error that says what
was answered.
"""

import itertools
import random
import re
import time

import pytest

from gristmill.dataset import StorageError
from gristmill.dataset.storage.gcs import GcsStorage
from tests.support.told import told

DATA = random.Random(5).randbytes(500_000)
LARGE = random.Random(6).randbytes((17 << 16) + 1)  # Three pieces of an upload.
K256 = 256 << 10
PLACE = "gs://bucket/dir"

JSON = "application/json"
HTML = (200, "text/html", "<!DOCTYPE html>\n<p>Sign in to this network")
# Answers of something else, such as a proxy.
OTHERS = {
    "page": HTML,
    "page for a missing object": (404, *HTML[1:]),
    "nothing": (200, JSON, ""),
    "no content": (204, JSON, ""),
    "half a document": (200, JSON, '{"items": ['),
    "an error of another form": (503, JSON, '{"error": "unavailable"}'),
}


def fault(kind, said="", **about):
    """Returns a fault of some requests of one kind, and what the error says."""
    return {"kind": kind, **about}, said


ALWAYS = {"times": 10**6}
LATE = "no success in 1 seconds"
FAULTS = {
    **{
        f"return-{status}": fault(str(status), times=2)
        for status in (503, 429, 408, 500, 502, 504, 308)
    },
    "return-400": fault("400", "400 made to fail"),
    "return-reset-connection": fault("reset", times=2),
    "return-broken-stream": fault("cut", after_bytes=0, times=2),
    "return-broken-stream-after-1B": fault("cut", after_bytes=1),
    "return-broken-stream-after-256K": fault("cut", after_bytes=K256),
    "return-broken-stream-final-chunk": fault("cut", after_bytes=1 << 30),
    "flip": fault("flip", times=2),
    "return-short": fault("short", after_bytes=9),
    "return-503-after-256K": fault("503", after_bytes=K256, times=2),
    "answer-lost": fault("lost"),
    "stall": fault("stall", after_bytes=0),
    "stall-after-256K": fault("stall", after_bytes=K256),
    "redirect": fault("redirect"),
    "return-503-always": fault("503", LATE, **ALWAYS),
    "return-308-always": fault("308", f"{LATE}|308 made to fail", **ALWAYS),
    "stall-always": fault("stall", LATE, **ALWAYS),
    # The shortest answer takes far longer than the limits.
    "drip": fault("drip", seconds=0.2),
    "drip-always": fault(
        "drip",
        f"{LATE}; last: no complete answer in 0.5 seconds",
        seconds=0.2,
        **ALWAYS,
    ),
    **{name: fault("other", answer=answer) for name, answer in OTHERS.items()},
    "redirect-always": fault("redirect", "307 elsewhere", **ALWAYS),
}


# Of pieces of uploads, which may be kept in part, or not at all.
UPLOADS = {
    **{f"part-{skip}": fault("part", after_bytes=K256, skip=skip) for skip in range(3)},
    "part-of-every-piece": fault("part", after_bytes=K256, times=4),
    "nothing-of-a-piece": fault("part", after_bytes=0, skip=1),
    **{
        f"{kind}-{skip}": fault(kind, skip=skip)
        for kind in ("forget", "gone")
        for skip in (1, 2)
    },
    **{f"return-{status}": fault(status, skip=1) for status in ("404", "410")},
    # The server says that it has more than it was sent, or all of it.
    **{
        f"{size}-are-kept": fault(
            "part", after_bytes=1, skip=skip, headers={"Range": f"bytes=0-{size - 1}"}
        )
        for size, skip in (((1 << 20) + 1, 0), (len(LARGE), 2))
    },
    "part-always": fault("part", "bucket", after_bytes=1, skip=1, **ALWAYS),
    "forget-always": fault("forget", "bucket", skip=1, **ALWAYS),
    "gone-always": fault("gone", "bucket", skip=1, **ALWAYS),
    "410-always": fault("410", "bucket", skip=1, **ALWAYS),
    "flip-always": fault("flip", "crc32c", **ALWAYS),
}


def _read(storage):
    with storage.open(f"{PLACE}/a") as file:
        return file.read() == DATA == storage.read(f"{PLACE}/a")


def _write(storage, data):
    storage.write(f"{PLACE}/new", data, replaces="")
    return storage.read(f"{PLACE}/new") == data


def _delete(storage):
    storage.delete(f"{PLACE}/a")
    return storage.stat(f"{PLACE}/a") is None


def _stat(storage):
    found = storage.stat(f"{PLACE}/a")
    return found is not None and found.size_bytes == len(DATA)


# Does what sends requests of a kind; returns whether the result is right.
CALLS = {
    "media": _read,
    "stat": _stat,
    "list": lambda storage: len(storage.list(PLACE)) == 2,
    "insert": lambda storage: _write(storage, DATA),
    "start": lambda storage: _write(storage, LARGE),
    "chunk": lambda storage: _write(storage, LARGE),
    "delete": _delete,
}
WRITES = ("insert", "chunk", "delete")
# Answers without a body, which these faults would break.
WITHOUT_BODY = {
    *itertools.product(
        ("return-broken-stream", "stall-always", "drip-always", "flip"),
        ("delete", "start"),
    ),
    # Only contents have checksums.
    *(("flip", "stat"), ("flip", "list")),
    # An empty answer is that to a deletion.
    *(("nothing", "delete"), ("no content", "delete")),
}
CASES = [
    *(case for case in itertools.product(FAULTS, CALLS) if case not in WITHOUT_BODY)
]


@pytest.fixture
def server(server, small_pieces):
    server.objects.put("bucket", "dir/a", DATA)
    server.objects.put("bucket", "dir/b", b"")
    return server


def check(server, name, fault, operation):
    """Sends requests of a kind, of which some meet a fault."""
    about, message = fault
    server.fail(operation=operation, **about)
    late = name.startswith(("stall", "drip"))
    storage = patient = GcsStorage(timeout_seconds=0.5 if late else 30)
    if name.endswith("always"):
        storage = GcsStorage(timeout_seconds=0.5, deadline_seconds=1)
    begin, said = time.monotonic(), ""
    try:
        assert CALLS[operation](storage)
    except StorageError as error:
        said = re.sub(r"\s+", " ", str(error))
    assert time.monotonic() - begin < 60
    assert re.search(message, said) if message else not said
    if message:
        assert "gs://bucket/dir" in said
        assert "to do:" in said
        # Nothing is half there, and the same again succeeds.
        server.faults.clear()
        assert CALLS[operation](patient)
    else:
        assert not any(each.times for each in server.faults)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("fault", "operation"), CASES)
def test_the_result_is_right_or_the_error_is(server, fault, operation):
    check(server, fault, FAULTS[fault], operation)


@pytest.mark.parametrize(
    ("fault", "operation"),
    [*((fault, "chunk") for fault in UPLOADS), ("flip-always", "insert")],
)
def test_the_whole_file_arrives_or_it_is_told(server, fault, operation):
    check(server, fault, UPLOADS[fault], operation)


@pytest.mark.parametrize("operation", ["list", "stat"])
@pytest.mark.parametrize(
    "about",
    [
        *('"generation": "1"', '"size": "1"', '"size": "many", "generation": "1"'),
        '"size": "1", "generation": "1", "crc32c": "?"',
        '"size": "1", "generation": "1", "crc32c": 3',
        '"size": [1], "generation": "1"',
    ],
)
def test_objects_that_are_not_described_are_an_error(server, operation, about):
    text = f'{{"name": "dir/a", {about}}}'
    text = text if operation == "stat" else f'{{"items": [{text}]}}'
    server.fail("other", operation, answer=(200, JSON, text))
    with told(StorageError, "numbers for size and generation", "gs://bucket/dir/a"):
        CALLS[operation](GcsStorage())


@pytest.mark.parametrize(
    ("status", "message", "cure", "operations"),
    [
        ("403", "bot@x lacks storage.objects.get access", "objectUser", CALLS),
        ("401", "credentials", "gcloud auth application-default login", CALLS),
        ("400", "Some reason", "run the same command again", CALLS),
        # These are no questions of roles.
        ("403", "Object is subject to bucket's retention policy", "wait until", WRITES),
        ("403", "Object is under active Temporary hold", "release the hold, ", WRITES),
    ],
)
def test_a_refusal_is_told_with_its_reason(server, status, message, cure, operations):
    server.fail(status, times=99, message=message)
    begin = time.monotonic()
    for operation in operations:
        with pytest.raises(StorageError) as caught:
            CALLS[operation](GcsStorage())
        for part in ("gs://bucket/", message, cure):
            assert part in str(caught.value)
        assert ("role" in str(caught.value)) == (cure == "objectUser")
    assert time.monotonic() - begin < 100  # Not at the deadline.


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize(
    "body",
    [
        *("", "<html>", "null", "[]", "[1]", "{}", '{"error": 1}', '{"error": {}}'),
        *('"x"', '{"items": 3}', '{"items": [{}]}', "\x00\x01"),
        '{"error": {"message": [1], "errors": 1, "details": [1]}}',
        '{"error": {"message": "m", "errors": [1], "details": 1}}',
        '{"kind": "storage#object", "size": [], "generation": -1, "crc32c": 1}',
        "[" * 100_000,
    ],
)
def test_any_body_of_any_answer(server, status, body):
    storage = GcsStorage(timeout_seconds=60, deadline_seconds=0.01)
    server.fail("other", answer=(status, JSON, body), times=99)
    for operation, call in CALLS.items():
        try:
            call(storage)
        except StorageError as e:
            assert "gs://bucket" in str(e)  # noqa: PT017
        else:
            # This server says that there is none, or that it is deleted.
            assert status == 200, operation
