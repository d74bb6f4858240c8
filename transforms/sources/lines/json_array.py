"""The elements of an array of JSON as lines, byte for byte, so that places stay."""

from __future__ import annotations

import codecs
import contextlib
import io
import re
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import CorruptStreamError
from gristmill.dataset.formats.streams import Readable
from gristmill.transforms.sources.lines.line_source import LineReader

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STEPS = np.zeros(256, np.int64)
_STEPS[[*b"[{"]], _STEPS[[*b"]}"]] = 1, -1
_BLANK = np.zeros(256, np.bool_)
_BLANK[[*b" \t\r\n", *codecs.BOM_UTF8]] = True


class ArrayLines:
    r"""A stream in which each element of an array is a line of its own.

    A comma between elements becomes the end of a line; the brackets of the array, and
    ends of lines between tokens, become blanks. All else stays, also what is no JSON:
    the parser of the lines names it.

    >>> ArrayLines(io.BytesIO(b'[{"a":\n[1, 2]}, {}]'), path="x").read(99)
    b' {"a": [1, 2]}\n {} '

    Args:
        stream: The array.
        path: Its file, for messages.
        inside: Whether the stream begins with an element.
    """

    def __init__(self, stream: Readable | BinaryIO, *, path: str, inside: bool = False):
        self._stream, self._path = stream, path
        self._depth = int(inside)
        self._in_text = False
        # Since the last comma or bracket of the array: any element, and its bracket.
        self._filled, self._first = False, not inside
        self._left = b""

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes, none only at the end.

        Raises CorruptStreamError if the array has no end.
        """
        while True:
            read = self._stream.read(max(size - len(self._left), 1))
            data = self._left + read
            # What a backslash at the end escapes is not known yet.
            odd = (len(data) - len(data.rstrip(b"\\"))) % 2 if read else 0
            self._left = data[len(data) - odd :]
            data = data[: len(data) - odd]
            if data or not read:
                break
        if not data and self._depth > 0:
            raise CorruptStreamError(
                "array of JSON has no end",
                where=self._path,
                expected="a bracket that closes it",
                got="the end of the file",
                cure="copy the file again: it is cut off",
            )
        return self._lines(data) if data else data

    def _lines(self, data: bytes) -> bytes:
        plain = _ESCAPED.sub(b"__", data) if b"\\" in data else data
        found = np.frombuffer(plain, np.uint8)
        # A quote that opens a text is in it, one that closes it is not.
        quoted = np.logical_xor.accumulate(found == ord('"')) ^ self._in_text
        self._in_text = bool(quoted[-1])
        steps = np.where(quoted, 0, _STEPS[found])
        depths = self._depth + np.cumsum(steps)
        self._depth = int(depths[-1])
        out = np.frombuffer(bytearray(data), np.uint8)
        out[~quoted & (found == ord("\n"))] = ord(" ")
        opens = (depths == 1) & (steps == 1) & (found == ord("["))
        commas = (depths == 1) & ~quoted & (found == ord(","))
        closes = (depths == 0) & (steps == -1) & (found == ord("]"))
        self._cut(out, np.flatnonzero(opens | commas | closes), ~_BLANK[found])
        return out.tobytes()

    def _cut(
        self,
        out: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int64],
        shown: npt.NDArray[np.bool_],
    ) -> None:
        """Writes blanks and ends of lines, unless an element is missing."""
        counts = np.concatenate([[0], np.cumsum(shown)])
        begin = 0
        for place in places.tolist():
            filled = self._filled or counts[place] > counts[begin]
            byte = out[place]
            if byte == ord(","):
                if filled:
                    out[place] = ord("\n")
            elif (byte == ord("[") and not filled) or (
                byte == ord("]") and (filled or self._first)
            ):
                out[place] = ord(" ")
            self._first, self._filled = byte == ord("["), False
            begin = place + 1
        self._filled = self._filled or bool(counts[-1] > counts[begin])


class ArrayReader(LineReader):
    """Reads the elements of an array; see `LineReader`."""

    item = "element"

    @classmethod
    def as_lines(cls, data: bytes, path: str) -> bytes:
        """Returns the first elements of a file, each on a line of its own."""
        lines, pieces = ArrayLines(io.BytesIO(data), path=path), []
        with contextlib.suppress(CorruptStreamError):  # Its end is not among them.
            while piece := lines.read(len(data)):
                pieces.append(piece)
        return b"".join(pieces)

    def restart(self, stream: Readable | BinaryIO) -> None:
        inside = self.offset > 0
        super().restart(ArrayLines(stream, path=self.path, inside=inside))
