"""An HTTP/1.1 answer, assembled from the bytes that arrive."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DIGITS = re.compile(r"\d{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
_HEAD_END = b"\r\n\r\n"
_MOST_HEAD_BYTES = 64 << 10
_WITHOUT_BODY = (204, 304)


class AnswerError(Exception):
    """The received bytes are not a complete HTTP/1.1 answer."""


@functools.lru_cache(256)
def _name(given: str) -> str:
    """Returns the name of a header in lower case, "" for what is none."""
    return given.lower() if _NAME.fullmatch(given) else ""


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
        "_head",
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
        self._head = b""
        self._status = 0
        self._chunked = False
        self._left: int | None = None
        self._pieces: list[bytes] = []
        self._rest = b""  # The rest of a chunked body.

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
            data = self._head + data if self._head else data
            at = data.find(_HEAD_END)
            if at < 0:
                if not b"HTTP/".startswith(data[:5]) or len(data) > _MOST_HEAD_BYTES:
                    raise AnswerError(f"no answer of HTTP/1.1: {data[:100]!r}")
                self._head = data
                return None
            self._head = b""
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
        received = sum(map(len, self._pieces))
        if self._chunked or self._left is not None:
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
            given, colon, value = field.partition(":")
            name, value = _name(given), value.strip(" \t")
            if not (colon and name) or "\n" in value:
                raise AnswerError(f"HTTP {status}: no header: {field[:100]!r}")
            if name in headers and headers[name] != value:
                if name == "content-length":
                    text = f"two lengths, {headers[name]} and {value}"
                    raise AnswerError(f"HTTP {status}: {text}")
                value = f"{headers[name]}, {value}"
            headers[name] = value
        self._headers, self._status = headers, status
        self._keeps = match[1] == "1" and (
            "close" not in headers.get("connection", "").lower()
        )
        self._left = self._length()
        if self._left is None and not self._chunked:
            self._keeps = False

    def _length(self) -> int | None:
        """Returns the length of the body; None if the end of the connection ends it."""
        coding = self._headers.get("transfer-encoding")
        length = self._headers.get("content-length")
        if self._status in _WITHOUT_BODY:
            return 0
        if coding is not None:
            if coding.lower() != "chunked":
                raise AnswerError(f"HTTP {self._status}: transfer encoding {coding!r}")
            self._chunked = True
            self._keeps = self._keeps and length is None
            return None
        if length is None:
            return None
        if _DIGITS.fullmatch(length) is None:
            raise AnswerError(f"HTTP {self._status}: a length of {length[:40]!r}")
        if int(length) > self._most_bytes:
            raise AnswerError(f"HTTP {self._status}: a body of {int(length):,} bytes")
        return int(length)

    def _feed_chunks(self, data: bytes) -> Answer | None:
        data, at = self._rest + data, 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._add(piece)
                if self._left:
                    self._rest = b""
                    return None
            # Here is the line before a chunk, or the end of the previous one.
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > _MOST_HEAD_BYTES:
                    raise AnswerError(f"HTTP {self._status}: a chunk without length")
                self._rest = data[at:]
                return None
            line = data[at:end]
            if self._left == 0 and not line:
                self._left, at = None, end + 2
                continue
            match = _CHUNK.fullmatch(line)
            if match is None or self._left == 0:
                text = f"no length of a chunk: {line[:40]!r}"
                raise AnswerError(f"HTTP {self._status}: {text}")
            if int(match[1], 16):
                self._left, at = int(match[1], 16), end + 2
                continue
            # The last chunk: trailers up to an empty line.
            after = data[end:]
            if _HEAD_END not in after:
                if len(after) > _MOST_HEAD_BYTES:
                    raise AnswerError(f"HTTP {self._status}: trailers without end")
                self._rest = data[at:]
                return None
            if after != _HEAD_END:
                self._keeps = False  # Nobody sends trailers, or another answer.
            return self._answer()

    def _add(self, piece: bytes) -> None:
        self._most_bytes -= len(piece)
        if self._most_bytes < 0:
            raise AnswerError(f"HTTP {self._status}: a body that is too long")
        self._pieces.append(piece)

    def _answer(self) -> Answer:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return Answer(self._status, self._headers, body, self._keeps)
