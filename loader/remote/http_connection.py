"""A non-blocking connection, driven by whoever waits for its socket."""

from __future__ import annotations

import select
import socket
import ssl
import time

from gristmill.loader.remote.http_answer import Answer, AnswerReader

_MOST_AT_ONCE_BYTES = 1 << 20
# After this many pieces of an answer, other answers and deadlines get a turn.
_MOST_AT_ONCE_PIECES = 32
_LONGEST_IDLE_SECONDS = 30.0


class HttpConnection:
    """A connection to a server, for one request at a time.

    Args:
        connected: The socket, which does not block.

    Attributes:
        fileno: Number of the socket, for waiting.
        waits_to_write: Whether to wait until it can be written to.
        received_bytes: Bytes received of the answer to the last request.
        requests: Number of requests sent.
    """

    __slots__ = (
        "_idle_since",
        "_out",
        "_reader",
        "_socket",
        "fileno",
        "received_bytes",
        "requests",
        "waits_to_write",
    )

    def __init__(self, connected: socket.socket):
        self._socket = connected
        self.fileno: int = connected.fileno()
        self._out = b""
        self.requests = self.received_bytes = 0
        self._idle_since = time.monotonic()
        self.waits_to_write = False

    @property
    def is_stale(self) -> bool:
        """Whether it has become unusable while idle.

        A device in between may have dropped it, or the server may have closed it or
        sent bytes that would be taken for the next answer.
        """
        if time.monotonic() - self._idle_since > _LONGEST_IDLE_SECONDS:
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
        self._flush()

    def advance(self) -> Answer | None:
        """Does all that is possible now; returns the answer when it is complete.

        Raises:
            OSError: The connection is broken.
            AnswerError: The received bytes are not an answer.
        """
        if self._out:
            self._flush()
            return None
        return self._receive()

    def close(self) -> None:
        """Closes it."""
        self._socket.close()

    def _flush(self) -> None:
        self.waits_to_write = False
        try:
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.waits_to_write = True
        except ssl.SSLWantReadError:
            pass

    def _receive(self) -> Answer | None:
        reader, pieces = self._reader, 0
        tls = self._socket if isinstance(self._socket, ssl.SSLSocket) else None
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
                    self._idle_since = time.monotonic()
                    return answer
                pieces += 1
                if tls is None:
                    if len(data) < wanted or pieces >= _MOST_AT_ONCE_PIECES:
                        return None  # There is nothing more, or it can be waited for.
                elif pieces >= _MOST_AT_ONCE_PIECES and not tls.pending():
                    return None  # Data already held by TLS cannot be waited for.
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except ssl.SSLWantWriteError:
            self.waits_to_write = True
            return None
