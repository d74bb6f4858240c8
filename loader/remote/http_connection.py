"""A non-blocking connection, driven by whoever waits for its socket."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from gristmill.loader.remote.http_answer import Answer, AnswerError, AnswerReader
from gristmill.loader.remote.http_route import Route

_MOST_AT_ONCE_BYTES = 1 << 20
# After this many pieces of an answer, other answers and deadlines get a turn.
_MOST_AT_ONCE_PIECES = 32
_LONGEST_IDLE_SECONDS = 30.0
_MOST_PROXY_BYTES = 16 << 10


class HttpConnection:
    """A connection to a server, for one request at a time.

    Attributes:
        fileno: Number of the socket, for waiting.
        waits_to_write: Whether to wait until it can be written to.
        received_bytes: Bytes received of the answer to the last request.
        requests: Number of requests sent.
        idle_since: Time when the last answer was complete.
    """

    __slots__ = (
        "_out",
        "_proxy_head",
        "_reader",
        "_route",
        "_socket",
        "_steps",
        "fileno",
        "idle_since",
        "received_bytes",
        "requests",
        "waits_to_write",
    )

    def __init__(self, route: Route):
        self._route = route
        self._socket: Any = route.connect()
        # TLS wraps it in another socket. A socket that broke meanwhile has no number.
        self.fileno: int = self._socket.fileno()
        # Steps before the first request.
        self._steps: list[Callable[[], None]] = [self._connected]
        if route.tunnel:
            self._proxy_head = b""
            self._steps += [self._ask_proxy, self._hear_proxy]
        if route.tls is not None:
            self._steps += [self._begin_tls, self._handshake]
        self._out = b""
        self.requests = self.received_bytes = 0
        self.idle_since = 0.0
        self.waits_to_write = True

    @property
    def is_stale(self) -> bool:
        """Whether it has become unusable while idle.

        A device in between may have dropped it, or the server may have closed it or
        sent bytes that would be taken for the next answer.
        """
        if time.monotonic() - self.idle_since > _LONGEST_IDLE_SECONDS:
            return True
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, request: bytes, *, most_bytes: int) -> None:
        """Begins to send a request whose answer has at most `most_bytes` of body.

        Raises:
            OSError: The connection is broken.
        """
        self._reader = AnswerReader(most_bytes)
        self._out = request
        self.received_bytes = 0
        self.requests += 1
        if not self._steps:
            self._try(self._flush)

    def advance(self) -> Answer | None:
        """Does all that is possible now; returns the answer when it is complete.

        Raises:
            OSError: The connection is broken.
            AnswerError: The received bytes are not an answer.
        """
        while self._steps:
            if not self._try(self._steps[0]):
                return None
            del self._steps[0]
        if self._out:
            self._try(self._flush)
            return None
        return self._receive()

    def close(self) -> None:
        """Closes it."""
        self._socket.close()

    def _try(self, step: Callable[[], None]) -> bool:
        """Does one step; returns False if it must wait for the socket."""
        self.waits_to_write = False
        try:
            step()
        except ssl.SSLWantWriteError:
            self.waits_to_write = True
        except ssl.SSLWantReadError:
            pass
        except BlockingIOError:
            self.waits_to_write = bool(self._out) and not self._steps
        else:
            return True
        return False

    def _connected(self) -> None:
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))

    def _ask_proxy(self) -> None:
        self._socket.sendall(self._route.tunnel)

    def _hear_proxy(self) -> None:
        while not self._proxy_head.endswith(b"\r\n\r\n"):
            # Single bytes: what follows does not come from the proxy.
            data = self._socket.recv(1)
            self._proxy_head += data
            if not data or len(self._proxy_head) > _MOST_PROXY_BYTES:
                break
        words = self._proxy_head.split(None, 2)
        if len(words) < 2 or words[1] != b"200":
            line = self._proxy_head.partition(b"\r\n")[0][:100].decode("latin-1")
            raise AnswerError(f"the proxy gives no connection: {line!r}")

    def _begin_tls(self) -> None:
        assert self._route.tls is not None
        self._socket.getpeername()  # If it is broken, it is closed as it is.
        self._socket = self._route.tls.wrap_socket(
            self._socket,
            server_hostname=self._route.name,
            do_handshake_on_connect=False,
        )

    def _handshake(self) -> None:
        self._socket.do_handshake()

    def _flush(self) -> None:
        while self._out:
            self._out = self._out[self._socket.send(self._out) :]

    def _receive(self) -> Answer | None:
        reader, pieces = self._reader, 0
        self.waits_to_write = False
        try:
            while True:
                # One more byte would show that the answer does not end there.
                wanted = min(reader.missing_bytes + 1, _MOST_AT_ONCE_BYTES)
                data = self._socket.recv(wanted)
                if not data:
                    return reader.end()
                self.received_bytes += len(data)
                answer = reader.feed(data)
                if answer is not None:
                    self.idle_since = time.monotonic()
                    return answer
                pieces += 1
                if self._route.tls is None:
                    if len(data) < wanted or pieces >= _MOST_AT_ONCE_PIECES:
                        return None  # There is nothing more, or it can be waited for.
                elif pieces >= _MOST_AT_ONCE_PIECES and not self._socket.pending():
                    return None  # Data already held by TLS cannot be waited for.
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except ssl.SSLWantWriteError:
            self.waits_to_write = True
            return None
