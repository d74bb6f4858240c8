"""Tokens: servers that give them are waited for no longer than others.

What is made of answers is tested over whole requests, in `test_trickle_gcs`.
"""

from __future__ import annotations

import http.server
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import requests
from google.auth.exceptions import RefreshError
from google.cloud.storage.retry import DEFAULT_RETRY
from google.oauth2.credentials import Credentials

from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.storage.gcs_connection import GcsSession

TOKEN = b'{"access_token": "it", "expires_in": 3600, "token_type": "Bearer"}'


class Tokens(http.server.ThreadingHTTPServer):
    """A server of tokens, and of what it is asked for with them.

    Attributes:
        url: Where it listens.
        drips: How many answers with a token trickle; of `path` only.
        path: Part of the paths.
        refuses: Whether it refuses tokens.
        seen: Paths and tokens of requests.
    """

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: clients hang up."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.drips, self.path, self.refuses = 0, "token", False
        self.seen: list[tuple[str, str]] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Tokens

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization", "")))
        asked = "token" in self.path
        status = 400 if asked and self.server.refuses else 200
        if "universe" in self.path:
            status = 404  # It is the usual one.
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")  # As on a machine of Google's.
        text = "project-id" in self.path
        self.send_header("Content-Type", "text/plain" if text else "application/json")
        body = TOKEN if asked else b'{"email": "it@example.com"}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.drips and self.server.path in self.path:
            self.server.drips -= 1
            for byte in body:
                self.wfile.write(bytes([byte]))
                threading.Event().wait(0.5)
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    with Tokens() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def session_of(server: Tokens, *, seconds: float) -> GcsSession:
    credentials = Credentials(  # type: ignore[no-untyped-call]
        None,
        refresh_token="x",
        token_uri=f"{server.url}/token",
        client_id="x",
        client_secret="x",
    )
    return GcsSession(credentials, timeout_seconds=seconds)


@pytest.mark.slow
def test_a_token_that_trickles_is_asked_for_again(tokens: Tokens) -> None:
    tokens.drips = 1
    session = session_of(tokens, seconds=0.5)
    get = DEFAULT_RETRY.with_timeout(60)(lambda: session.get(f"{tokens.url}/a"))
    response = daemon_call(get, thread_name="get").result(60)
    assert response.json() == {"email": "it@example.com"}
    # Once more, or on a busy machine again and again.
    *asked, last = tokens.seen
    assert len(asked) >= 2
    assert set(asked) == {("/token", "")}
    assert last == ("/a", "Bearer it")


def test_a_token_that_always_trickles_is_an_error(tokens: Tokens) -> None:
    tokens.drips = 99
    session = session_of(tokens, seconds=0.3)
    get = daemon_call(lambda: session.get(f"{tokens.url}/a"), thread_name="get")
    with pytest.raises(requests.Timeout, match=r"no complete answer in 0\.3 seconds"):
        get.result(60)


def test_a_token_that_is_refused_is_not_asked_for_again(tokens: Tokens) -> None:
    tokens.refuses = True
    session = session_of(tokens, seconds=30)
    with pytest.raises(RefreshError):
        DEFAULT_RETRY.with_timeout(60)(session.get)(f"{tokens.url}/a")
    assert len(tokens.seen) == 1


_READ = """
from gristmill.dataset.storage.lookup import storage_for
storage_for("gs://bucket/a").read("gs://bucket/a")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("universe", "nothing found in 1 seconds"),
        ("", "nothing found in 1 seconds"),
        # The library asks five times by itself.
        pytest.param("/token", "no complete answer in 0.5 s", marks=pytest.mark.soak),
    ],
)
def test_a_machine_whose_metadata_trickles_gives_an_error(
    tokens: Tokens, tmp_path: pathlib.Path, path: str, expected: str
) -> None:
    tokens.drips, tokens.path = 99, path
    host = tokens.url.removeprefix("http://")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GOOGLE_") and name != "STORAGE_EMULATOR_HOST"
    }
    environment |= {
        **{"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host},
        **{"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)},
        **{"NO_PROXY": "127.0.0.1"},
        "GRISTMILL_GCS_TIMEOUT_SECONDS": "0.5",
        "GRISTMILL_GCS_DEADLINE_SECONDS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _READ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "StorageError" in done.stderr
    assert expected in done.stderr
    assert "check network" in done.stderr
