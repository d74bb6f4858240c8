"""TFRecord files as a source: frames, found from any byte by their checksums."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill.dataset.formats.tfrecord.frame_layout import FRAME_OVERHEAD_BYTES
from gristmill.dataset.formats.tfrecord.frame_reader import FrameReader
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.sources.formats import (
    RecordOptions,
    SourceSpec,
)
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.streams.frame_walk import join_walks, walk_frames
from gristmill.transforms.sources.streams.stream_range import StreamSource


class TFRecordSource(StreamSource):
    """Records as they are, in frames with checksums."""

    def __init__(self, spec: SourceSpec):
        super().__init__(spec, FrameReader)

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges that begin and end at frames, by a walk over the headers."""
        if file.compression != "none":
            return super().cut(file, range_bytes=range_bytes)
        chains = walk_frames(file, 0, file.size_bytes, step_bytes=range_bytes)
        return join_walks(file, chains, range_bytes=range_bytes)

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether frames with these bytes lie end to end in the range."""
        if span.start_bytes is None or span.stop_bytes is None:
            return not span.records
        size_bytes = raw_bytes + span.records * FRAME_OVERHEAD_BYTES
        return span.stop_bytes - span.start_bytes == size_bytes


def make_source(spec: SourceSpec) -> TFRecordSource:
    """Returns the source of a spec."""
    return TFRecordSource(spec)


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns the rules for records: they stay as they are."""
    del files, options
    return SourceSpec()
