"""A source whose files are streams of records, read forward by a codec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler
from gristmill.transforms.sources.formats import TFRECORD, SourceSpec
from gristmill.transforms.sources.forward_pass import KeptPass
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.protocol import PartCount
from gristmill.transforms.sources.streams.stream_range import StreamRange
from gristmill.transforms.sources.streams.stream_reader import OpenReader


class StreamSource:
    """A format that is read forward; see `Source` for its methods.

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
        self.spec = spec
        self._open_reader = open_reader
        self._lookback_bytes = lookback_bytes
        self._sure = sure

    def read(
        self,
        file: InputFile,
        source: SourceRange,
        *,
        on_damage: DamageHandler | None = None,
        first_place: int | None = None,
        cuts: Sequence[int] = (),
        kept: KeptPass | None = None,
    ) -> StreamRange:
        """Returns a reader of one range of a file."""
        return StreamRange(
            file,
            source,
            self._open_reader,
            lookback_bytes=self._lookback_bytes,
            sure=self._sure,
            on_damage=on_damage,
            first_place=first_place,
            cuts=cuts,
            kept=kept,
        )

    def count(
        self,
        file: InputFile,
        source: SourceRange,
        *,
        stride_records: int,
        on_damage: DamageHandler | None = None,
        first_place: int | None = None,
    ) -> PartCount:
        """Counts the good records of a part of a file, by reading it."""
        reader = self.read(file, source, on_damage=on_damage, first_place=first_place)
        plain = file.compression == "none"
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

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin and end at records: one, by default."""
        yield 0, file.size_bytes if file.compression == "none" else -1

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether the records of a range fill it: True by default."""
        return True

    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""
        if self.spec == TFRECORD:
            return {}
        return {"format": self.spec.format, "record": self.spec.record}

    def features(self) -> dict[str, Any] | None:
        """Returns the features of the records: by default, plain bytes."""
        return None

    def place_text(self, place: int) -> str:
        """Returns the name of a place in messages."""
        return f"byte offset {place:,}"
