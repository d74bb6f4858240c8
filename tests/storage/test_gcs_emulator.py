"""Addresses of a server in place of Cloud Storage, as users write them."""

from __future__ import annotations

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.gcs_connection import emulator_url
from gristmill.dataset.storage.lookup import storage_for


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
