"""Requests and tokens end in time, whatever the other end of a socket does."""

from __future__ import annotations

import http.server
import os
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError
from google.cloud.storage.retry import DEFAULT_RETRY
from google.oauth2.credentials import Credentials

from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.storage.gcs_connection import GcsSession
from tests.storage.google_network import listening

Talk = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\n"
PIECE_BYTES = 256 << 10  # After which the time begins anew.


def after_request(first: bytes, then: bytes, *, seconds: float = 0.05) -> Talk:
    """Answers, and sends the same again and again for as long as somebody is there."""

    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(first)
        while True:
            threading.Event().wait(seconds)
            connection.sendall(then)

    return talk


def takes_nothing(connection: socket.socket) -> None:
    while connection.recv(1):
        threading.Event().wait(0.05)


def session(seconds: float = 0.3) -> GcsSession:
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    return GcsSession(credentials, timeout_seconds=seconds)


def request(call: Callable[[], requests.Response]) -> requests.Response:
    """Requests a page; fails where that does not end."""
    return daemon_call(call, thread_name="request").result(60)


SILENT = after_request(b"", b"")
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("talk", "url", "options"),
    [
        (SILENT, "http://{}/", {}),
        (SILENT, "https://{}/", {}),
        (after_request(OK + b"Connection: close\r\n\r\n", b"x"), "http://{}/", {}),
        (after_request(CHUNKED, b"1\r\nx\r\n"), "http://{}/", {}),
        (SILENT, "https://storage.example/", {"proxies": {}}),
        (takes_nothing, "http://{}/", {"data": bytes(64 << 20)}),
    ],
    ids=["silent", "no TLS", "no length", "chunks", "proxy", "body"],
)
def test_what_never_ends_ends_in_time(
    talk: Talk, url: str, options: dict[str, Any]
) -> None:
    with listening(talk) as address:
        if "proxies" in options:
            options = {"proxies": {"https": f"http://{address}"}}
        expected = r"no complete answer in 0\.3 sec|timed out"
        with pytest.raises(requests.RequestException, match=expected):
            request(lambda: session().request("POST", url.format(address), **options))


@pytest.mark.slow
def test_a_slow_answer_that_goes_on_is_complete() -> None:
    first = OK + f"Content-Length: {5 * PIECE_BYTES}\r\n\r\n".encode()
    with listening(after_request(first, bytes(PIECE_BYTES), seconds=1)) as address:
        response = session(seconds=4).get(f"http://{address}/?alt=media")
    assert response.content == bytes(5 * PIECE_BYTES)


def test_a_name_that_cannot_be_one_is_an_error() -> None:
    with pytest.raises(requests.ConnectionError, match="aaaa"):
        request(lambda: session().get(f"http://{'a' * 70}.invalid/"))


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
        body = b'{"email": "it@example.com"}'
        if asked:
            body = b'{"access_token": "it", "expires_in": 3600, "token_type": "Bearer"}'
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


def getter(server: Tokens, *, seconds: float) -> Callable[[], requests.Response]:
    """Returns a call that gets a page with a token of the server."""
    credentials = Credentials(  # type: ignore[no-untyped-call]
        None,
        **{"refresh_token": "x", "client_id": "x", "client_secret": "x"},
        token_uri=f"{server.url}/token",
    )
    session = GcsSession(credentials, timeout_seconds=seconds)
    return lambda: session.get(f"{server.url}/a")


@pytest.mark.slow
def test_a_token_that_trickles_is_asked_for_again(tokens: Tokens) -> None:
    tokens.drips = 1
    get = DEFAULT_RETRY.with_timeout(60)(getter(tokens, seconds=0.5))
    assert request(get).json() == {"email": "it@example.com"}
    # Once more, or on a busy machine again and again.
    *asked, last = tokens.seen
    assert len(asked) >= 2
    assert set(asked) == {("/token", "")}
    assert last == ("/a", "Bearer it")


def test_a_token_that_always_trickles_is_an_error(tokens: Tokens) -> None:
    tokens.drips = 99
    with pytest.raises(requests.Timeout, match=r"no complete answer in 0\.3 seconds"):
        request(getter(tokens, seconds=0.3))


def test_a_token_that_is_refused_is_not_asked_for_again(tokens: Tokens) -> None:
    tokens.refuses = True
    with pytest.raises(RefreshError):
        DEFAULT_RETRY.with_timeout(60)(getter(tokens, seconds=30))()
    assert len(tokens.seen) == 1


_READ = """
from gristmill.dataset.storage.lookup import storage_for
storage_for("gs://bucket/a").read("gs://bucket/a")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *(("universe", "nothing found in 1 seconds"), ("", "nothing found in 1 sec")),
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
        **{k: v for k, v in os.environ.items() if not k.startswith("GOOGLE_")},
        **{"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host},
        **{"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)},
        **{"NO_PROXY": "127.0.0.1", "STORAGE_EMULATOR_HOST": ""},
        "GRISTMILL_GCS_TIMEOUT_SECONDS": "0.5",
        "GRISTMILL_GCS_DEADLINE_SECONDS": "1",
    }
    command = [sys.executable, "-c", _READ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    for part in ("StorageError", expected, "check network"):
        assert part in done.stderr
