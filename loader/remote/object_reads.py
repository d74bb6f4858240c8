"""Single reads of ranges of objects in Cloud Storage, many at a time in one thread.

The thread that reads sends the requests and receives the answers itself: no thread is
woken for an answer, and every kind of answer is handled here. `range_fetcher` decides
when to try again.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import http
import queue
import re
import selectors
import socket
import ssl
import sys
import threading
import time
import urllib.parse
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, cast

from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.storage.gcs_answers import (
    content_range,
    message_of,
    retry_after_seconds,
    strange,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import split_path
from gristmill.loader.remote.http_connection import Answer, AnswerError, HttpConnection

if TYPE_CHECKING:
    from gristmill.dataset.storage.gcs import GcsStorage
    from gristmill.dataset.storage.gcs_connection import GcsConnection
    from gristmill.loader.remote.http_route import Route

SAME_TOKEN_SECONDS = 5.0
"""How long headers are used before their token is checked."""

_LONGEST_WAIT_SECONDS = 60.0  # The system takes no more than some days.
_MOST_ERROR_BYTES = 1 << 20
_BEARER = re.compile(r"(?im)^authorization: (.*?)\r?$")
_DOUBTFUL = (204, 304, 404, 410, 412)
_TEMPORARY = (407, 408, 421, 425, 429)
# Refusals to be trusted. Others may come from something in between.
_STANDARD = {status for status in http.HTTPStatus if 400 <= status < 500}


class ByteRange(NamedTuple):
    """Bytes of one version of an object.

    Attributes:
        path: The object.
        begin: First byte.
        end: One past the last; None for the end of the object, with `begin` 0.
        version: The generation to read; None for any.
    """

    path: str
    begin: int = 0
    end: int | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.end is None:
            return self.path
        return f"{self.path}, bytes [{self.begin:,}, {self.end:,})"


class Kind(enum.Enum):
    """The kinds of failures, which decide the next attempt."""

    TEMPORARY = "may succeed later"
    WRONG = "answered with other bytes than the range"
    DOUBTFUL = "the object seems to be deleted or to have another version"
    UNAUTHORIZED = "the token is not accepted, or no longer"
    REFUSED = "will fail again"


class Failure(NamedTuple):
    """Why a read failed.

    Attributes:
        kind: Kind of the failure.
        text: What happened, or was found.
        status: HTTP status; 0 if there was no answer.
        pause_seconds: How long the server asks to wait.
        token: The header with the refused token.
    """

    kind: Kind
    text: str
    status: int = 0
    pause_seconds: float = 0.0
    token: str = ""


class ObjectReads:
    """Connections to Cloud Storage. Safe to share by threads, not across a fork.

    `STORAGE_EMULATOR_HOST` chooses another server, which takes no credentials.
    Otherwise it uses the credentials of writes.

    Args:
        timeout_seconds: Time limit of each step to a connection.
    """

    def __init__(self, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._idle: collections.deque[HttpConnection] = collections.deque()
        weakref.finalize(self, _close, self._idle)
        self._targets: dict[str, str] = {}
        self._token, self._token_at = "", float("-inf")

    @functools.cached_property
    def route(self) -> Route:
        """The route to the server; it raises StorageError if there is none."""
        from gristmill.loader.remote.http_route import Route

        return Route(str(_connection().client.api_endpoint))

    def idle(self) -> HttpConnection | None:
        """Returns an idle connection, if there is one."""
        with contextlib.suppress(IndexError):
            while (found := self._idle.pop()).is_stale:
                found.close()
            return found
        return None

    def connect(self) -> HttpConnection:
        """Returns a new connection; raises OSError if the server cannot be reached."""
        return HttpConnection(self.route.connect(self._timeout_seconds))

    def keep(self, connection: HttpConnection) -> None:
        """Keeps a connection for another read."""
        self._idle.append(connection)

    def request_of(self, wanted: ByteRange, token: str) -> bytes:
        """Returns the request for a range."""
        route = self.route
        target = self._targets.get(wanted.path)
        if target is None:
            bucket, name = split_path(wanted.path)
            quoted = urllib.parse.quote(name, safe="")
            target = f"{route.prefix}/download/storage/v1/b/{bucket}/o/{quoted}"
            self._targets[wanted.path] = target
        version = "" if wanted.version is None else f"&generation={wanted.version}"
        last = "" if wanted.end is None else wanted.end - 1
        # With gzip accepted, an object stored with Content-Encoding: gzip comes as
        # stored, and ranges mean stored bytes.
        return (
            f"GET {target}?alt=media{version} HTTP/1.1\r\nHost: {route.host}\r\n"
            f"User-Agent: gristmill\r\nAccept-Encoding: gzip\r\n{route.proxy_headers}"
            f"{token}Range: bytes={wanted.begin}-{last}\r\n\r\n"
        ).encode()

    def token(self, *, refused: str = "") -> str:
        """Returns the headers that authorize requests, with a valid token.

        Args:
            refused: Headers that the server did not accept.

        Raises:
            StorageError: There is no token.
        """
        with self._lock:
            # Another read may have replaced the refused token.
            renews = bool(refused) and refused == self._token
            fresh = time.monotonic() - self._token_at < SAME_TOKEN_SECONDS
            if renews or not fresh:
                match = _BEARER.search(refused) if renews else None
                headers = _connection().authorization(refused=match[1] if match else "")
                lines = (f"{name}: {value}\r\n" for name, value in headers.items())
                self._token, self._token_at = "".join(lines), time.monotonic()
            return self._token


def _close(connections: collections.deque[HttpConnection]) -> None:
    with contextlib.suppress(IndexError):
        while True:  # Other threads may use them until the process has ended.
            connections.pop().close()


def _connection() -> GcsConnection:
    return cast("GcsStorage", storage_for("gs://")).connection


@dataclasses.dataclass(slots=True, eq=False)
class Read:
    """A read of a range that is in progress.

    Attributes:
        wanted: The range.
        token: The headers that authorize it.
        sent_at: When it began.
        connection: Its connection, None while it waits for one.
        events: What it waits for.
    """

    wanted: ByteRange
    token: str
    sent_at: float
    connection: HttpConnection | None = None
    events: int = 0


class ReadsInFlight:
    """The reads of one thread that are in progress.

    Connections are made in threads, and go to the read that waits for the longest time.
    """

    def __init__(self, reads: ObjectReads):
        self._reads = reads
        self._selector = selectors.DefaultSelector()
        self._waiting: collections.deque[Read] = collections.deque()
        self._connecting, self._closed = 0, False
        self._made: queue.SimpleQueue[Future[HttpConnection]] = queue.SimpleQueue()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def start(self, wanted: ByteRange) -> Read:
        """Starts reading a range; `wait` returns the read with its outcome.

        Raises:
            StorageError: There are no credentials, or there is no way to the server.
        """
        read = Read(wanted, self._reads.token(), time.monotonic())
        self._waiting.append(read)
        self._connect()
        return read

    def wait(self, seconds: float) -> list[tuple[Read, bytes | Failure]]:
        """Returns outcomes as soon as there are any, or none after a time."""
        done: list[tuple[Read, bytes | Failure]] = []
        for key, _ in self._selector.select(min(seconds, _LONGEST_WAIT_SECONDS)):
            read: Read | None = key.data
            if read is None:
                self._woken.recv(1 << 12)
                done += self._take_made()
            elif (outcome := self._advance(read)) is not None:
                done.append((read, outcome))
        return done

    def give_up(self, read: Read) -> None:
        """Gives up a read that is in progress."""
        if read.connection is not None:
            self._selector.unregister(read.connection.fileno)
            read.connection.close()
        else:
            self._waiting.remove(read)

    def close(self) -> None:
        """Gives up all reads."""
        self._waiting.clear()
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self.give_up(key.data)
        self._selector.close()
        self._closed = True
        self._take_made()
        self._woken.close()
        self._waker.close()

    def _connect(self) -> None:
        """Gives idle connections to reads that wait, and makes others."""
        while self._waiting and (found := self._reads.idle()) is not None:
            self._send(self._waiting.popleft(), found)
        route = self._reads.route  # It may raise an error that no retry cures.
        while self._connecting < len(self._waiting):
            self._connecting += 1
            made = daemon_call(self._reads.connect, thread_name=f"to {route.host}")
            made.add_done_callback(self._tell)

    def _tell(self, made: Future[HttpConnection]) -> None:
        self._made.put(made)
        with contextlib.suppress(OSError):  # It is closed, or knows already.
            self._waker.send(b"x")
        if self._closed:
            self._take_made()

    def _take_made(self) -> list[tuple[Read, bytes | Failure]]:
        """Gives new connections to reads that wait; returns those that failed."""
        failed: list[tuple[Read, bytes | Failure]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                made = self._made.get_nowait()
                self._connecting -= 1
                error = made.exception()
                if error is None:
                    self._reads.keep(made.result())
                elif not isinstance(error, OSError):
                    raise error
                elif self._waiting:
                    failed.append((self._waiting.popleft(), _broken(error)))
        if not self._closed:
            self._connect()
        return failed

    def _send(self, read: Read, connection: HttpConnection) -> None:
        """Sends the request of a read on its connection."""
        end = read.wanted.end
        most = sys.maxsize if end is None else end - read.wanted.begin
        request = self._reads.request_of(read.wanted, read.token)
        # A connection that is broken says so when the answer is read.
        with contextlib.suppress(OSError):
            connection.send(request, most_bytes=max(most, _MOST_ERROR_BYTES))
        read.connection, read.events = connection, _events_of(connection)
        self._selector.register(connection.fileno, read.events, read)

    def _advance(self, read: Read) -> bytes | Failure | None:
        connection = read.connection
        assert connection is not None
        try:
            answer = connection.advance()
        except (OSError, AnswerError) as e:
            self._selector.unregister(connection.fileno)
            connection.close()
            if connection.requests == 1 or connection.received_bytes:
                return _broken(e)
            # The server had closed the idle connection: the request is sent again.
            read.connection = None
            self._waiting.appendleft(read)
            self._connect()
            return None
        if answer is None:
            events = _events_of(connection)
            if events != read.events:
                read.events = events
                self._selector.modify(connection.fileno, events, read)
            return None
        self._selector.unregister(connection.fileno)
        if answer.keeps:
            self._reads.keep(connection)
        else:
            connection.close()
        return _judged(answer, read.wanted, read.token)


def _events_of(connection: HttpConnection) -> int:
    if connection.waits_to_write:
        return selectors.EVENT_WRITE
    return selectors.EVENT_READ


def _broken(error: Exception) -> Failure:
    """Returns the outcome of a request whose connection broke."""
    kind = Kind.TEMPORARY
    if isinstance(error, ssl.SSLCertVerificationError):
        kind = Kind.REFUSED
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Failure(kind, text)


def _judged(answer: Answer, wanted: ByteRange, token: str) -> bytes | Failure:
    """Returns the bytes of an answer if they match the request."""
    status, headers, body = answer.status, answer.headers, answer.body
    if status != 206:
        return _refusal(answer, token)
    text = headers.get("content-range", "")
    stated = content_range(text)
    if stated is None:
        return Failure(Kind.TEMPORARY, _strange(answer), status)
    begin, end, total = stated
    asked = wanted.begin, total if wanted.end is None else wanted.end
    if (begin, end) != asked or len(body) != end - begin:
        text = f"asked for bytes [{asked[0]:,}, {asked[1]:,}), got {len(body):,} bytes"
        return Failure(Kind.WRONG, f"{text} as {headers['content-range']}", status)
    generation = headers.get("x-goog-generation", "no")
    if wanted.version is not None and generation != wanted.version:
        return Failure(Kind.DOUBTFUL, f"{generation} version", status)
    return body


def _refusal(answer: Answer, token: str) -> Failure:
    status, headers = answer.status, answer.headers
    if status < 300 and status != 204:
        if "x-goog-generation" in headers:
            text = f"HTTP {status}: not a part of the object"
            return Failure(Kind.WRONG, text, status)
        return Failure(Kind.TEMPORARY, _strange(answer), status)
    text = f"HTTP {status}: {message_of(answer.body) or 'no text'}"
    if status == 401:
        return Failure(Kind.UNAUTHORIZED, text, status, token=token)
    if status in _DOUBTFUL:
        return Failure(Kind.DOUBTFUL, text, status)
    if status == 416:
        return Failure(Kind.WRONG, text, status)
    if status in _STANDARD and status not in _TEMPORARY:
        return Failure(Kind.REFUSED, text, status)
    pause = retry_after_seconds(headers.get("retry-after"), headers.get("date"))
    return Failure(Kind.TEMPORARY, text, status, pause)


def _strange(answer: Answer) -> str:
    return strange(answer.status, answer.headers.get("content-type"), answer.body)
