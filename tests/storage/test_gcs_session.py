"""Requests and tokens end in time, whatever the other end of a socket does."""

from __future__ import annotations

import contextlib
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

# The request's first line and headers, which are not looked at, are in the first piece.
Talk = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\n"
PIECE_BYTES = 256 << 10  # After which the time begins anew.


@contextlib.contextmanager
def listening(talk: Talk) -> Iterator[int]:
    """Talks to everyone who connects, until they hang up; gives the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                talk(connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(
                        target=serve, args=(connection,), daemon=True
                    ).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def trickling(connection: socket.socket, data: bytes = b"x") -> None:
    """Sends the same again and again, for as long as somebody is there."""
    gone = threading.Event()
    while True:
        connection.sendall(data)
        gone.wait(0.05)


def after_request(first: bytes, then: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(first)
        trickling(connection, then)

    return talk


def session(seconds: float = 0.3) -> GcsSession:
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    return GcsSession(credentials, timeout_seconds=seconds)


def get(url: str, *, seconds: float = 0.3, **options: Any) -> requests.Response:
    """Requests a page; fails where that does not end."""
    call = daemon_call(lambda: session(seconds).get(url, **options), thread_name="get")
    return call.result(60)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_says_nothing_is_given_up_in_time(scheme: str) -> None:
    with (
        listening(after_request(b"", b"")) as port,
        pytest.raises(requests.Timeout, match=r"no complete answer in 0\.3 sec"),
    ):
        get(f"{scheme}://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    ("head", "then"),
    [
        (b"Connection: close\r\n\r\n", b"x"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_a_body_without_a_length_that_trickles_ends_in_time(
    head: bytes, then: bytes
) -> None:
    with (
        listening(after_request(OK + head, then)) as port,
        pytest.raises(requests.Timeout, match="no complete answer"),
    ):
        get(f"http://127.0.0.1:{port}/")


def test_a_proxy_without_an_answer_ends_in_time() -> None:
    with listening(after_request(b"", b"")) as port:
        proxies = {"https": f"http://127.0.0.1:{port}"}
        with pytest.raises(requests.Timeout, match="no complete answer"):
            get("https://storage.example/", proxies=proxies)


def test_a_server_that_takes_no_body_ends_in_time() -> None:
    def talk(connection: socket.socket) -> None:
        while connection.recv(1):
            threading.Event().wait(0.05)

    with listening(talk) as port:
        call = daemon_call(
            lambda: session().post(f"http://127.0.0.1:{port}/", data=bytes(64 << 20)),
            thread_name="post",
        )
        with pytest.raises(requests.ConnectionError, match="timed out"):
            call.result(60)


@pytest.mark.slow
def test_a_slow_answer_that_goes_on_is_complete() -> None:
    pieces = 5

    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        length = pieces * PIECE_BYTES
        connection.sendall(OK + f"Content-Length: {length}\r\n\r\n".encode())
        for _ in range(pieces):
            threading.Event().wait(1)
            connection.sendall(bytes(PIECE_BYTES))

    with listening(talk) as port:
        response = session(seconds=4).get(f"http://127.0.0.1:{port}/?alt=media")
    assert response.content == bytes(pieces * PIECE_BYTES)


def test_a_name_that_cannot_be_one_is_an_error() -> None:
    with pytest.raises(requests.ConnectionError, match=r"aaaa"):
        get(f"http://{'a' * 70}.invalid/")


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
