"""`Retry-After` as numbers and dates, and retries that keep to it."""

from __future__ import annotations

import concurrent.futures
import email.utils
import time
from collections.abc import Callable, Iterator

import pytest

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.gcs_session import retry_after_seconds
from tests.support.gcs_server import GcsServer


def test_a_date_without_that_of_the_server_is_of_our_clock() -> None:
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 50 < retry_after_seconds({"Retry-After": date}) <= 60


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("bucket", "a", b"data")
        yield server


def dated(seconds: float) -> dict[str, str]:
    """A date so far ahead, for a server whose clock is years behind ours."""
    then = 1_000_000_000
    return {
        "Date": email.utils.formatdate(then, usegmt=True),
        "Retry-After": email.utils.formatdate(then + seconds, usegmt=True),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "headers"), [("429", {"Retry-After": "1"}), ("503", dated(1))]
)
def test_every_request_waits_as_long_as_it_is_asked_to(
    server: GcsServer, status: str, headers: dict[str, str]
) -> None:
    storage = GcsStorage(deadline_seconds=30)
    calls: dict[str, Callable[[], object]] = {
        "media": lambda: storage.read("gs://bucket/a"),
        "list": lambda: storage.list("gs://bucket"),
        "stat": lambda: storage.stat("gs://bucket/a"),
        "insert": lambda: storage.write("gs://bucket/b", b"new"),
        "start": lambda: storage.write("gs://bucket/c", bytes(9 << 20)),
        "delete": lambda: storage.delete("gs://bucket/none"),
    }

    def seconds_of(operation: str) -> float:
        server.fail(status, operation, headers=headers)
        begin = time.monotonic()
        calls[operation]()
        return time.monotonic() - begin

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        took = list(pool.map(seconds_of, calls))
    assert min(took) >= 1  # Usually at most 0.2.
    assert {
        operation: server.requests[operation] for operation in calls
    } == dict.fromkeys(calls, 2)


@pytest.mark.slow
def test_a_long_wait_ends_with_the_deadline(server: GcsServer) -> None:
    storage = GcsStorage(deadline_seconds=1)
    server.fail("503", "media", headers={"Retry-After": "3600"})
    begin = time.monotonic()
    assert storage.read("gs://bucket/a") == b"data"  # By the last try.
    assert 0.9 < time.monotonic() - begin < 60
    server.fail("503", "media", times=9, headers={"Retry-After": "3600"})
    with pytest.raises(StorageError, match="no success in 1 seconds; last: 503"):
        storage.read("gs://bucket/a")
    # Two each: the first, and the last at the deadline, which may fit in twice.
    assert 4 <= server.requests["media"] <= 6
