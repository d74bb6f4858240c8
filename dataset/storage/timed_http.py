"""HTTP requests with a deadline.

The timeouts of requests and urllib3 apply to each received piece: a body that comes a
byte at a time never times out. Here the deadline is checked after each piece of a body.
Headers end in time unless they come in endless pieces.
"""

from __future__ import annotations

import contextvars
import io
import socket
import sys
import time
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.util import connection as urllib3_connection

_CONNECTIONS = 128  # Connections to keep: more than threads that use them.
# After this many bytes, the time of a request starts again.
_PIECE_BYTES = 256 << 10
_SHORTEST_WAIT_SECONDS = 0.05
# Encodings of a body that are undone. Of others, urllib3 lets the errors of their
# packages out.
_ENCODINGS = ("gzip", "deflate")


class TimedAdapter(HTTPAdapter):
    """Sends requests and receives whole answers in bounded time.

    An answer is complete when `send` returns it, also with `stream=True`. Only gzip and
    deflate are asked for and undone.

    Args:
        seconds: Time limit of a request, from connecting to the last byte. It restarts
            with every 256 KiB sent or received, so that large transfers can take as
            long as they need.
        most_bytes: Limit for a body without a stated length.
    """

    # Attributes of a copy: google-auth copies sessions with their adapters.
    __attrs__ = [*HTTPAdapter.__attrs__, "_seconds", "_most_bytes"]  # noqa: RUF012

    def __init__(self, *, seconds: float, most_bytes: int = 1 << 30):
        self._seconds, self._most_bytes = seconds, most_bytes
        super().__init__(pool_maxsize=_CONNECTIONS)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Creates the pools of connections; a copy of the adapter has its own."""
        self._pools: dict[tuple[str, ...], Any] = {}
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the pools of connections through a proxy."""
        manager = super().proxy_manager_for(*args, **kwargs)
        if isinstance(manager, urllib3.ProxyManager):  # A SOCKS proxy needs its own.
            manager.pool_classes_by_scheme = _POOLS
        return manager

    def get_connection_with_tls_context(
        self,
        request: requests.PreparedRequest,
        verify: Any,
        proxies: Any = None,
        cert: Any = None,
    ) -> Any:
        """Returns the pool of connections to a host, looked up once per host."""
        host = (request.url or "").split("/", 3)[:3]
        key = (*host, str(verify), str(proxies), str(cert))
        pool = self._pools.get(key)
        if pool is None:
            find = super().get_connection_with_tls_context
            pool = self._pools[key] = find(request, verify, proxies, cert)
        return pool

    def close(self) -> None:
        """Closes the connections."""
        self._pools.clear()
        super().close()

    def send(  # type: ignore[override]  # requests names what else it gives.
        self, request: requests.PreparedRequest, **kwargs: Any
    ) -> requests.Response:
        """Sends a request and returns the answer, with all of its body.

        Raises:
            requests.Timeout: The request was not complete in time.
            requests.RequestException: It failed otherwise.
        """
        kwargs.update(stream=True, timeout=self._seconds)
        if request.headers.get("Accept-Encoding") not in _ENCODINGS:
            request.headers["Accept-Encoding"] = ", ".join(_ENCODINGS)
        deadline = _Deadline(self._seconds)
        token = _current.set(deadline)
        try:
            response = super().send(request, **kwargs)
            self._receive(response, deadline)
        except (requests.RequestException, HTTPError, OSError) as e:
            if deadline.left_seconds <= 0:
                text = f"no complete answer in {self._seconds:,.4g} seconds"
                raise requests.ReadTimeout(text, request=request) from e
            if isinstance(e, requests.RequestException):
                raise
            raise requests.ConnectionError(e, request=request) from e
        finally:
            _current.reset(token)
        return response

    def _receive(self, response: requests.Response, deadline: _Deadline) -> None:
        """Receives the body, and puts it in place of the connection."""
        raw = response.raw
        try:
            body = self._body_of(response, deadline)
            raw.release_conn()  # Connection for the next request.
        finally:
            raw.close()  # Closes the connection unless it was released.
        headers = raw.headers.copy()
        if headers.get("Content-Encoding") not in _ENCODINGS:
            headers.discard("Content-Encoding")
        response.raw = urllib3.HTTPResponse(
            io.BytesIO(body),
            headers=headers,
            status=raw.status,
            version=raw.version,
            reason=raw.reason,
            preload_content=False,
            request_method=response.request.method,
        )

    def _body_of(self, response: requests.Response, deadline: _Deadline) -> bytes:
        bounded = "Content-Length" in response.headers
        left = sys.maxsize if bounded else self._most_bytes
        pieces = []
        raw = response.raw
        deadline.limit_wait()
        while piece := raw.read1(_PIECE_BYTES, decode_content=False):
            deadline.add(len(piece))
            deadline.limit_wait()
            left -= len(piece)
            if left < 0:
                raise HTTPError(f"an answer of over {self._most_bytes:,} bytes")
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Connection(HTTPConnection):
    """A connection for requests with a deadline."""

    def _new_conn(self) -> socket.socket:
        """Tries one address of the server after the other, in the time left."""
        deadline = _current.get()
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
                # urllib3 itself gives the whole time to each of 20 addresses.
                share_seconds = deadline.left_seconds / (len(found) - position)
                self.timeout = max(share_seconds, _SHORTEST_WAIT_SECONDS)
                try:
                    connected = super()._new_conn()
                except (ConnectTimeoutError, NewConnectionError) as e:
                    error = e
                    continue
                connected.settimeout(limit)
                return connected
        finally:
            self._dns_host, self.timeout = name, limit
        raise error

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Sends a request."""
        _current.get().connection = self
        super().request(*args, **kwargs)

    def send(self, data: Any) -> None:
        """Sends bytes, and counts those accepted by the system."""
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


class _Deadline:
    """The deadline of the request being made.

    Attributes:
        connection: The connection of the request.
    """

    def __init__(self, seconds: float):
        self._seconds, self._bytes = seconds, 0
        self._at = time.monotonic() + seconds
        self.connection: HTTPConnection | None = None

    @property
    def left_seconds(self) -> float:
        """The time left."""
        return self._at - time.monotonic()

    def add(self, count_bytes: int) -> None:
        """Counts bytes sent or received; raises TimeoutError if they took too long.

        The time starts again with every 256 KiB.
        """
        self._bytes += count_bytes
        if self._bytes >= _PIECE_BYTES:
            self._bytes = 0
            self._at = time.monotonic() + self._seconds
        elif self.left_seconds <= 0:
            raise TimeoutError("the request took too long")

    def limit_wait(self) -> None:
        """Limits the next wait for the connection to the time left."""
        # A connection that is used once has given its socket to the answer.
        connected = None if self.connection is None else self.connection.sock
        if connected is not None:
            connected.settimeout(max(self.left_seconds, _SHORTEST_WAIT_SECONDS))


_current: contextvars.ContextVar[_Deadline] = contextvars.ContextVar("deadline")
