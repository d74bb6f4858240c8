"""HTTP requests end in time: over sockets whose other end does what it should not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from google.auth.credentials import AnonymousCredentials

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
