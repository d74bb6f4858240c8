"""Answers that are not Google's tell what they can."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.gcs import GcsStorage
from tests.support.gcs_server import GcsServer

SOURCE, COPY = FileInfo("gs://bucket/a", 1, "1", 0), "gs://bucket/c"
CALLS: list[Callable[[GcsStorage], object]] = [
    lambda storage: storage.read(SOURCE.path),
    lambda storage: storage.stat(SOURCE.path),
    lambda storage: storage.list("gs://bucket"),
    lambda storage: storage.write(COPY, b"x"),
    lambda storage: storage.write(COPY, bytes((8 << 20) + 1)),
    lambda storage: storage.delete(SOURCE.path),
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
def test_any_body_of_any_answer(
    monkeypatch: pytest.MonkeyPatch, status: int, body: str
) -> None:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
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
