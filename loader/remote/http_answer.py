"""An HTTP/1.1 answer, assembled from the bytes that arrive."""

from __future__ import annotations

import re
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

    __slots__ = (
        "_chunked",
        "_headers",
        "_keeps",
        "_left",
        "_most_bytes",
        "_pieces",
        "_rest",
        "_status",
    )

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
            self._keeps = False  # More than announced, and of unknown origin.
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
                headers[name] += f", {value}"  # Of two lengths, none is a length.
        self._headers, self._status = headers, status
        self._left = self._length()
        self._keeps = (
            match[1] == "1"
            and "close" not in headers.get("connection", "").lower()
            and self._chunked == (self._left is None)
        )

    def _length(self) -> int | None:
        """Returns the length of the body; None if its end tells."""
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
