"""A source whose files are streams of records, read forward by a codec."""

from __future__ import annotations

from typing import Any

from gristmill.transforms.sources.formats import TFRECORD, SourceSpec
from gristmill.transforms.sources.protocol import PartCount, Source
from gristmill.transforms.sources.range_reader import ReadRequest
from gristmill.transforms.sources.streams.stream_range import StreamRange
from gristmill.transforms.sources.streams.stream_reader import OpenReader


class StreamSource(Source):
    """A format that is read forward; see `Source` for what its methods do.

    Args:
        spec: Rules for making records.
        open_reader: Opens the reader of a stream.
        lookback_bytes: As in `StreamReader`.
        sure: As in `StreamRange`.
    """

    def __init__(
        self,
        spec: SourceSpec,
        open_reader: OpenReader,
        *,
        lookback_bytes: int = 0,
        sure: bool = False,
    ):
        super().__init__(spec)
        self._open_reader = open_reader
        self._lookback_bytes = lookback_bytes
        self._sure = sure

    def reader(self, request: ReadRequest) -> StreamRange:
        """Returns a reader of one range of a file."""
        return StreamRange(
            request,
            self._open_reader,
            lookback_bytes=self._lookback_bytes,
            sure=self._sure,
        )

    def counted(self, request: ReadRequest, stride_records: int) -> PartCount:
        """Counts the good records of a part of a file, by reading it."""
        reader = self.reader(request)
        plain = request.file.compression == "none"
        offsets: list[int] = []
        records = 0
        for batch in reader.batches():
            if plain or not records:
                begins = batch.places[-records % stride_records :: stride_records]
                offsets += begins if plain else begins[:1]
            records += len(batch.records)
        span = reader.span
        if span.start_bytes is None or span.stop_bytes is None:
            return PartCount(None, 0, 0, ())
        return PartCount(span.start_bytes, span.stop_bytes, records, offsets)

    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""
        if self.spec == TFRECORD:
            return {}
        return {"format": self.spec.format, "record": self.spec.record}
