"""A non-blocking HTTP/1.1 connection, driven by whoever waits for its socket."""

from __future__ import annotations

import re
import select
import socket
import ssl
import time
from typing import NamedTuple

_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?")
_DIGITS = re.compile(r"\d{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
_HEAD_END = b"\r\n\r\n"
_MOST_HEAD_BYTES = 64 << 10
_WITHOUT_BODY = (204, 304)


class AnswerError(Exception):
    """The received bytes are not a complete HTTP/1.1 answer."""


class Answer(NamedTuple):
    """A complete answer.

    Attributes:
        status: HTTP status.
        headers: Headers by name in lower case.
        body: Body as sent: encodings are not undone.
        keeps: Whether the connection can take another request.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    keeps: bool


class AnswerReader:
    """Takes the bytes of one answer as they arrive.

    Args:
        most_bytes: Limit for the body. An answer with a longer stated length ends
            there.
    """

    def __init__(self, most_bytes: int):
        self._most_bytes = most_bytes
        self._status = 0
        self._chunked = False
        self._left: int | None = None
        self._pieces: list[bytes] = []
        self._rest = b""  # Of a head, or of a chunk.

    @property
    def missing_bytes(self) -> int:
        """Number of bytes still to come; a guess until it is known."""
        return (self._status and self._left) or 1 << 15

    def feed(self, data: bytes) -> Answer | None:
        """Takes the next bytes; returns the answer if they complete it.

        Raises:
            AnswerError: They do not belong to an answer.
        """
        while not self._status:
            data = self._rest + data if self._rest else data
            at = data.find(_HEAD_END)
            if at < 0:
                if not b"HTTP/".startswith(data[:5]) or len(data) > _MOST_HEAD_BYTES:
                    raise AnswerError(f"no answer of HTTP/1.1: {data[:100]!r}")
                self._rest = data
                return None
            self._rest = b""
            self._begin(data[:at])
            data = data[at + len(_HEAD_END) :]
        if self._chunked:
            return self._feed_chunks(data)
        if self._left is None:  # Until the end of the connection.
            self._add(data)
            return None
        if len(data) > self._left:
            self._keeps = False  # More bytes than announced, of unknown origin.
            data = data[: self._left]
        self._left -= len(data)
        self._pieces.append(data)
        return None if self._left else self._answer()

    def end(self) -> Answer:
        """Returns the answer that the end of the connection completes.

        Raises:
            AnswerError: It is not complete.
        """
        if not self._status:
            raise AnswerError("the connection was closed before the answer")
        if self._chunked or self._left is not None:
            received = sum(map(len, self._pieces))
            total = f" of {received + self._left:,}" if self._left is not None else ""
            text = f"the connection was closed after {received:,}{total} bytes"
            raise AnswerError(f"HTTP {self._status}: {text}")
        return self._answer()

    def _begin(self, head: bytes) -> None:
        """Reads the head of an answer; skips one before it, such as status 100."""
        line, *fields = head.decode("latin-1").split("\r\n")
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise AnswerError(f"no answer of HTTP/1.1: {line[:100]!r}")
        status = int(match[2])
        if status < 200 and status != 101:
            return
        headers: dict[str, str] = {}
        for field in fields:
            name, colon, value = field.partition(":")
            name, value = name.lower(), value.strip(" \t")
            if not colon or not name.isprintable() or "\n" in value:
                raise AnswerError(f"HTTP {status}: no header: {field[:100]!r}")
            if headers.setdefault(name, value) != value:
                headers[name] += f", {value}"  # Two different lengths are no length.
        self._headers, self._status = headers, status
        self._left = self._length()
        self._keeps = (
            match[1] == "1"
            and "close" not in headers.get("connection", "").lower()
            and self._chunked == (self._left is None)
        )

    def _length(self) -> int | None:
        """Returns the length of the body; None if its end marks it."""
        coding = self._headers.get("transfer-encoding")
        length = self._headers.get("content-length")
        if self._status in _WITHOUT_BODY:
            return 0
        if coding is not None:
            if coding.lower() != "chunked" or length is not None:
                text = f"transfer encoding {coding!r}, length {length}"
                raise AnswerError(f"HTTP {self._status}: {text}")
            self._chunked = True
            return None
        if length is None:
            return None
        if _DIGITS.fullmatch(length) is None or int(length) > self._most_bytes:
            raise AnswerError(f"HTTP {self._status}: a length of {length[:40]!r}")
        return int(length)

    def _feed_chunks(self, data: bytes) -> Answer | None:
        data, at = self._rest + data, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            match = _CHUNK.fullmatch(data, at, end)
            if match is None:
                text = f"no length of a chunk: {data[at : at + 40]!r}"
                raise AnswerError(f"HTTP {self._status}: {text}")
            size = int(match[1], 16)
            begin, stop = end + 2, end + 2 + size
            if not size:  # The last chunk: trailers up to an empty line.
                if (last := data.find(_HEAD_END, end)) < 0:
                    break
                if (last, len(data)) != (end, end + 4):
                    self._keeps = False  # Nobody sends trailers, or another answer.
                return self._answer()
            if len(data) < stop + 2:
                break
            if data[stop : stop + 2] != b"\r\n":
                raise AnswerError(f"HTTP {self._status}: a chunk without end")
            self._add(data[begin:stop])
            at = stop + 2
        self._rest = data[at:]
        if len(self._rest) > self._most_bytes + _MOST_HEAD_BYTES:
            raise AnswerError(f"HTTP {self._status}: a chunk without end")
        return None

    def _add(self, piece: bytes) -> None:
        self._most_bytes -= len(piece)
        if self._most_bytes < 0:
            raise AnswerError(f"HTTP {self._status}: a body that is too long")
        self._pieces.append(piece)

    def _answer(self) -> Answer:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return Answer(self._status, self._headers, body, self._keeps)


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
