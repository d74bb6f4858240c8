"""Sources whose records are lines, such as text files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from gristmill.dataset.formats.streams import Readable
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import FORMATS, RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
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

    Args:
        spec: How records are made.
        parser: Parser of the lines.
        features: Features of the records for `dataset.json`, if they are examples.
        reader: Reads the lines.
    """

    def __init__(
        self,
        spec: SourceSpec,
        parser: LineParser,
        features: dict[str, Any] | None = None,
        reader: type[LineReader] = LineReader,
    ):
        super().__init__(
            spec,
            self._reader,
            lookback_bytes=LineReader.lookback_bytes,
            sure=True,
        )
        self._parser, self._opened = parser, reader
        self._features = features

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
        offset -= LineReader.lookback_bytes
        with storage_for(file.path).open(
            file.path, offset=offset, end=offset + 1, version=file.version
        ) as stream:
            reader = self._reader(
                stream, path=file.path, offset=offset, size_bytes=file.size_bytes
            )
            reader.resync()
            return reader.offset

    def features(self) -> dict[str, Any] | None:
        """Returns the features of records; None for lines and single columns."""
        return self._features

    def _reader(
        self,
        stream: Readable | BinaryIO,
        *,
        path: str,
        offset: int,
        size_bytes: int | None,
    ) -> LineReader:
        return self._opened(
            stream,
            path=path,
            parser=self._parser,
            offset=offset,
            size_bytes=size_bytes,
        )


def make_source(spec: SourceSpec) -> LineSource:
    """Returns the source of a spec."""
    return LineSource(spec, TextLines())


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns the rules for records: a record is a line."""
    del files, options
    return SourceSpec("text", "line")


class TextLines(LineParser):
    """Makes a record from each line, empty or not: its bytes without the newline."""

    def records(self, lines: Lines) -> Made:
        """See `LineParser`."""
        check_text(lines)
        return Made(split_lines(lines), np.arange(len(lines.ends)))
