"""Answers in pieces, that nobody asked for, without an end, or none at all."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from gristmill.dataset.base.errors import StorageError
from gristmill.loader.remote import http_connection
from gristmill.loader.remote.http_connection import Answer, AnswerReader, HttpConnection
from gristmill.loader.remote.http_route import Route
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import ReadOptions

OK = b"HTTP/1.1 206 Partial Content\r\n"
WHOLE = {
    "length": (OK + b"Content-Length: 3\r\nX-A:  b \r\n\r\nabc", b"abc", True),
    "nothing": (OK + b"content-length:0\r\n\r\n", b"", True),
    "no phrase": (b"HTTP/1.1 206\r\nContent-Length: 3\r\n\r\nabc", b"abc", True),
    "1.0": (b"HTTP/1.0 206 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", False),
    "close": (
        OK + b"Connection: Close\r\nContent-Length: 3\r\n\r\nabc",
        b"abc",
        False,
    ),
    "the same length twice": (
        OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"abc",
        True,
    ),
    "chunks": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n",
        b"abc",
        True,
    ),
    "chunks and trailers": (
        OK + b"Transfer-Encoding: Chunked\r\n\r\n3 \r\nabc\r\n0\r\nX-A: b\r\n\r\n",
        b"abc",
        False,
    ),
    "heads before it": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + OK
        + b"Content-Length: 3\r\n\r\nabc",
        b"abc",
        True,
    ),
    "status without body": (
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        b"",
        True,
    ),
}


def read(data: bytes, cuts: list[int]) -> Answer | None:
    """Feeds pieces until an answer is complete."""
    reader = AnswerReader(100)
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if begin < end and (answer := reader.feed(data[begin:end])) is not None:
            return answer
    return None


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_is_whole_in_whatever_pieces_it_arrives(name: str) -> None:
    data, body, keeps = WHOLE[name]
    for cut in range(len(data)):
        answer = read(data, [cut])
        assert answer is not None
        assert answer.body == body
        assert answer.status == (304 if name == "status without body" else 206)
    byte_by_byte = read(data, list(range(1, len(data))))
    assert byte_by_byte is not None
    assert (byte_by_byte.body, read(data, []).keeps) == (body, keeps)  # type: ignore[union-attr]
    # Nothing less is an answer.
    assert read(data[:-1], []) is None


OPTIONS = ReadOptions(timeout_seconds=60, deadline_seconds=120, hedge_factor=None)
HASTY = ReadOptions(timeout_seconds=0.2, deadline_seconds=0.5, hedge_factor=None)
HEAD = b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-2/9\r\n"
WANTED = ByteRange("gs://bucket/a", 0, 3)


@contextlib.contextmanager
def listening(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Gives each connection to a function, in a thread; yields the address."""

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            handle(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def request_on(connection: socket.socket) -> bytes:
    """Receives a request."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        data = connection.recv(4096)
        if not data:
            raise ConnectionError
        received += data
    return received


def fetch(fetcher: RangeFetcher) -> bytes:
    found: list[bytes] = []
    fetcher.fetch([WANTED], lambda _, data: found.append(data))
    return found[0]


@pytest.mark.parametrize(
    "late", [HEAD + b"Content-Length: 3\r\n\r\nbad", b"x", b"HTTP/1.1 408 X\r\n\r\n"]
)
def test_what_arrives_on_an_idle_connection_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, late: bytes
) -> None:
    sent = threading.Event()

    def handle(connection: socket.socket) -> None:
        while True:
            request_on(connection)
            connection.sendall(HEAD + b"Content-Length: 3\r\n\r\nabc")
            answered.wait(60)
            connection.sendall(late)
            sent.set()

    answered = threading.Event()
    with listening(handle) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        fetcher = RangeFetcher(OPTIONS)
        assert fetch(fetcher) == b"abc"
        answered.set()
        assert sent.wait(60)
        assert fetch(fetcher) == b"abc"
    assert fetcher.counts.retries == 0


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3_000),
        (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
            (b"1;" + b"x" * 60_000 + b"\r\nz\r\n") * 9,
        ),
    ],
    ids=["heads", "chunks"],
)
def test_an_answer_without_end_leaves_time_for_others(
    monkeypatch: pytest.MonkeyPatch, begin: bytes, endless: bytes
) -> None:
    """And for its own deadline."""
    # The buffers of a connection may hold less than all pieces of a turn.
    monkeypatch.setattr(http_connection, "_MOST_AT_ONCE_PIECES", 2)

    def handle(connection: socket.socket) -> None:
        request_on(connection)
        connection.sendall(begin)
        connection.settimeout(0.2)
        try:
            while True:
                connection.sendall(endless)
        except TimeoutError:
            full.set()
            done.wait(60)

    full, done = threading.Event(), threading.Event()
    with listening(handle) as address:
        connection = HttpConnection(Route(f"http://{address}").connect(9))
        with contextlib.closing(connection):
            connection.send(b"GET / HTTP/1.1\r\n\r\n", most_bytes=1 << 20)
            while not full.wait(0.01) and not connection.received_bytes:
                assert connection.advance() is None
            assert full.wait(60)
            before = connection.received_bytes
            connection.waits_to_write = True  # As TLS may have asked for.
            assert connection.advance() is None
            done.set()
            assert not connection.waits_to_write
            assert 0 < connection.received_bytes - before < 80_000


@pytest.mark.slow
def test_a_proxy_that_hangs_up_after_its_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handle(connection: socket.socket) -> None:
        request_on(connection)
        linger = struct.pack("ii", 1, 0)  # It resets the connection.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    # On a busy machine an attempt takes longer than those of others here may.
    patient = dataclasses.replace(HASTY, timeout_seconds=2, deadline_seconds=2)
    with listening(handle) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "https://storage.example")
        for name in ("NO_PROXY", "no_proxy", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTPS_PROXY", f"http://{address}")
        with pytest.raises(
            StorageError, match=r"(?s)no success in .*(reset|connected)"
        ):
            fetch(RangeFetcher(patient))
