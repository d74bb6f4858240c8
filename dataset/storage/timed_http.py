"""HTTP requests that end in time, whatever arrives.

The timeouts of requests and urllib3 are for each piece that is received: an answer
that comes a byte at a time never ends. Here a request has a deadline, at which a thread
shuts its connection down. Only that ends every wait: for a proxy, headers, a body.
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import os
import socket
import sys
import threading
import time
from typing import Any, Self

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.util import connection as urllib3_connection

_CONNECTIONS = 128  # That are kept: more than threads that use them.
# After so many bytes the time of a request starts again.
_PIECE_BYTES = 256 << 10
_LONGEST_SLEEP_SECONDS = 0.5


class TimedAdapter(HTTPAdapter):
    """Sends requests, and receives each answer whole, in a bounded time.

    An answer is complete when `send` returns it, also with `stream=True`.

    Args:
        seconds: How long a request may take, from connecting to the last byte. The
            time starts again with every 256 KiB that are sent or received: large
            transfers may take as long as they need.
        most_bytes: Limit for a body that does not say its length.
    """

    def __init__(self, *, seconds: float, most_bytes: int = 1 << 30):
        self._seconds, self._most_bytes = seconds, most_bytes
        super().__init__(pool_maxsize=_CONNECTIONS)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Makes the pools of connections."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the pools of connections through a proxy."""
        manager = super().proxy_manager_for(*args, **kwargs)
        if isinstance(manager, urllib3.ProxyManager):  # A SOCKS proxy needs its own.
            manager.pool_classes_by_scheme = _POOLS
        return manager

    def send(  # type: ignore[override]  # requests names what else it gives.
        self, request: requests.PreparedRequest, **kwargs: Any
    ) -> requests.Response:
        """Sends a request and returns the answer, with all of its body.

        Raises:
            requests.Timeout: The request was not complete in time.
            requests.RequestException: It failed otherwise.
        """
        kwargs.update(stream=True, timeout=self._seconds)
        with _Attempt(self._seconds) as attempt:
            try:
                response = super().send(request, **kwargs)
                self._receive(response, attempt)
            except (requests.RequestException, HTTPError, OSError) as e:
                if attempt.expired or attempt.deadline <= time.monotonic():
                    raise self._timeout(request) from e
                if isinstance(e, requests.RequestException):
                    raise
                raise requests.ConnectionError(e, request=request) from e
        if attempt.expired:  # The body may end because the connection was shut down.
            raise self._timeout(request)
        return response

    def _receive(self, response: requests.Response, attempt: _Attempt) -> None:
        """Receives the body, and puts it in the place of the connection."""
        raw = response.raw
        try:
            body = self._body_of(response, attempt)
            raw.release_conn()  # For the next request.
        finally:
            raw.close()  # Closes the connection unless it was released.
        response.raw = urllib3.HTTPResponse(
            io.BytesIO(body),
            headers=raw.headers,
            status=raw.status,
            version=raw.version,
            reason=raw.reason,
            preload_content=False,
            request_method=response.request.method,
        )

    def _body_of(self, response: requests.Response, attempt: _Attempt) -> bytes:
        bounded = "Content-Length" in response.headers
        left = sys.maxsize if bounded else self._most_bytes
        pieces = []
        for piece in response.raw.stream(_PIECE_BYTES, decode_content=False):
            attempt.add(len(piece))
            left -= len(piece)
            if left < 0:
                raise HTTPError(f"an answer of over {self._most_bytes:,} bytes")
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _timeout(self, request: requests.PreparedRequest) -> requests.Timeout:
        text = f"no complete answer in {self._seconds:,.4g} seconds"
        return requests.ReadTimeout(text, request=request)


class _Connection(HTTPConnection):
    """A connection that the request under way can shut down."""

    def _new_conn(self) -> socket.socket:
        """Connects to one address of the server after the other, in the time left."""
        attempt = _current.get()
        name, limit = self._dns_host, self.timeout
        family = urllib3_connection.allowed_gai_family()
        error: Exception = NewConnectionError(self, f"no address of {name} is known")
        try:
            found = socket.getaddrinfo(
                name.strip("[]"), self.port, family, socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as e:
            raise NewConnectionError(self, f"cannot find {name}: {e}") from e
        try:
            for position, (*_, address) in enumerate(found):
                self._dns_host = str(address[0])
                left = attempt.deadline - time.monotonic()
                # By itself urllib3 gives the whole time to each of 20 addresses.
                self.timeout = max(left / (len(found) - position), 0.05)
                try:
                    connected = super()._new_conn()
                except (ConnectTimeoutError, NewConnectionError) as e:
                    error = e
                    continue
                connected.settimeout(limit)
                attempt.use(connected)
                return connected
        finally:
            self._dns_host, self.timeout = name, limit
        raise error

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Sends a request."""
        if self.sock is not None:  # Kept from an earlier request.
            _current.get().use(self.sock)
        super().request(*args, **kwargs)

    def send(self, data: Any) -> None:
        """Sends bytes, and counts those that the system has taken."""
        with memoryview(data) as view:
            for begin in range(0, len(view), _PIECE_BYTES):
                piece = view[begin : begin + _PIECE_BYTES]
                super().send(piece)
                _current.get().add(len(piece))


class _TlsConnection(_Connection, HTTPSConnection):
    """The same with TLS."""


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class _Attempt:
    """A request that is being made, and its deadline."""

    def __init__(self, seconds: float):
        self._seconds, self._bytes = seconds, 0
        self.deadline = time.monotonic() + seconds
        self.expired = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        _watch.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)
        _watch.remove(self)
        self._forget_socket()

    def add(self, count_bytes: int) -> None:
        """Counts bytes that were sent or received."""
        self._bytes += count_bytes
        if self._bytes >= _PIECE_BYTES:
            self._bytes = 0
            self.deadline = time.monotonic() + self._seconds

    def use(self, connected: socket.socket) -> None:
        """Takes the connection that is to be shut down at the deadline."""
        self._forget_socket()
        # A descriptor of its own: the connection's may be closed and used again.
        copy = socket.socket(fileno=os.dup(connected.fileno()))
        with self._lock:
            self._socket = copy
        if self.expired:
            self.end()

    def end(self) -> None:
        """Shuts the connection down: whatever waits for it returns."""
        with self._lock:
            self.expired = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # The server was faster.
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _forget_socket(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


class _Watch:
    """A thread that ends the requests of this process at their deadlines."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._attempts: set[_Attempt] = set()
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, attempt: _Attempt) -> None:
        self._attempts.add(attempt)
        self._busy.set()
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, name="gristmill-http-watch", daemon=True
            )
            thread.start()
            self._thread = thread

    def remove(self, attempt: _Attempt) -> None:
        self._attempts.discard(attempt)

    def _run(self) -> None:
        while self._busy.wait():
            self._busy.clear()  # First: what is added from here on sets it again.
            attempts = tuple(self._attempts)
            now = time.monotonic()
            for attempt in attempts:
                if attempt.deadline <= now and not attempt.expired:
                    attempt.end()
            if attempts:
                self._busy.set()
                left = min(attempt.deadline for attempt in attempts) - now
                time.sleep(min(max(left, 0.01), _LONGEST_SLEEP_SECONDS))


_current: contextvars.ContextVar[_Attempt] = contextvars.ContextVar("attempt")
_watch = _Watch()
# A forked process has no such thread.
os.register_at_fork(after_in_child=_watch.reset)
