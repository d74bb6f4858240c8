"""Sources whose records are lines, such as text files."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from gristmill.dataset.formats.streams import Readable
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import FORMATS, SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.lines.line_reader import (
    LineParser,
    LineReader,
    Lines,
    Made,
    check_text,
    split_lines,
)
from gristmill.transforms.sources.stream_range import StreamSource


class LineSource(StreamSource):
    """Lines, found by newlines; see `Source`.

    Attributes:
        reader: Reads the lines.
    """

    reader: type[LineReader] = LineReader
    lookback_bytes = 1  # The previous byte tells whether a line begins at a byte.
    sure = True

    def __init__(self, spec: SourceSpec):
        super().__init__(spec)
        self._parser = self.make_parser()

    @abc.abstractmethod
    def make_parser(self) -> LineParser:
        """Returns the parser that makes records of the lines."""

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges that begin and end at lines."""
        size = file.size_bytes
        if file.compression != "none" or FORMATS[self.spec.format].stream:
            yield from super().cut(file, range_bytes=range_bytes)
            return
        begin = 0
        while size - begin > range_bytes:
            end = self._next_line(file, begin + range_bytes)
            if end >= size:
                break
            yield begin, end
            begin = end
        yield begin, size

    def _next_line(self, file: InputFile, offset: int) -> int:
        """Returns where the first line at or after an offset begins."""
        offset -= self.lookback_bytes
        with storage_for(file.path).open(
            file.path, offset=offset, end=offset + 1, version=file.version
        ) as stream:
            reader = self.open_reader(
                stream, path=file.path, offset=offset, size_bytes=file.size_bytes
            )
            reader.resync()
            return reader.offset

    def open_reader(
        self,
        stream: Readable | BinaryIO,
        *,
        path: str,
        offset: int,
        size_bytes: int | None,
    ) -> LineReader:
        """Returns a reader of lines."""
        parser = self._parser
        return self.reader(
            stream, path=path, parser=parser, offset=offset, size_bytes=size_bytes
        )


class TextSource(LineSource):
    """Text: a record is a line."""

    def make_parser(self) -> LineParser:
        """Returns the parser that makes records of the lines."""
        return TextLines()


class TextLines(LineParser):
    """Makes a record from each line, empty or not: its bytes without the newline."""

    def records(self, lines: Lines) -> Made:
        """See `LineParser`."""
        check_text(lines)
        return Made(split_lines(lines), np.arange(len(lines.ends)))
