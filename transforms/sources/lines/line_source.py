"""A source whose records are lines."""

from __future__ import annotations

from typing import Any, BinaryIO

from gristmill.dataset.streams.inflated_stream import Readable
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.lines.line_reader import LineReader
from gristmill.transforms.sources.lines.parser import LineParser
from gristmill.transforms.sources.streams.stream_source import StreamSource


class LineSource(StreamSource):
    """Lines, found by newlines; see `Source`.

    Args:
        spec: How records are made.
        parser: Makes them.
        features: What they hold, as `dataset.json` keeps it, if they are examples.
    """

    def __init__(
        self,
        spec: SourceSpec,
        parser: LineParser,
        features: dict[str, Any] | None = None,
    ):
        super().__init__(
            spec,
            self._reader,
            lookback_bytes=LineReader.lookback_bytes,
            sure=parser.sure,
        )
        self._parser = parser
        self._features = features

    def features(self) -> dict[str, Any] | None:
        """Returns what records hold; None of lines and of single columns."""
        return self._features

    def _reader(
        self,
        stream: Readable | BinaryIO,
        *,
        path: str,
        offset: int,
        size_bytes: int | None,
    ) -> LineReader:
        return LineReader(
            stream,
            path=path,
            parser=self._parser,
            offset=offset,
            size_bytes=size_bytes,
        )
