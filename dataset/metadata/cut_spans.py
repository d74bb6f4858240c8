"""The spans of a shard after records were removed from it.

A span is cut at each removed record, so that every other record is still found in its
file by the start of its span and the lengths in between.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gristmill.dataset.formats.tfrecord.frame_layout import FRAME_OVERHEAD_BYTES
from gristmill.dataset.metadata.provenance import (
    NUMBERED,
    DamagedRegion,
    frame_offsets,
    record_numbers,
)
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.sources import SourceFile

IntArray = npt.NDArray[np.int64]


def cut_spans(
    spans: Sequence[SourceSpan],
    removed: IntArray,
    lengths: IntArray,
    *,
    files: Sequence[SourceFile],
    regions: Sequence[DamagedRegion] = (),
    changed: bool = False,
) -> tuple[SourceSpan, ...]:
    """Returns the spans of a shard's records without some of them.

    Spans that do not add up to the records stay, as their records are not known. Spans
    without any record left are dropped.

    Args:
        spans: Spans of the shard as it is.
        removed: int64 [removed], numbers of the shard's records, ascending.
        lengths: int64 [records], the length of each record, including removed ones.
        files: The files that spans count.
        regions: Regions of these files that were set aside.
        changed: Whether a function of the user's changed records: their lengths in
            the files are then not known.
    """
    counts = np.array([span.records for span in spans], np.int64)
    if counts.sum() != len(lengths):
        return tuple(spans)
    ends = np.cumsum(counts)
    found: list[SourceSpan] = []
    for span, end in zip(spans, ends.tolist(), strict=True):
        first = end - span.records
        begin, stop = np.searchsorted(removed, [first, end]).tolist()
        if begin == stop:
            found.append(span)
            continue
        known = range(len(files))
        file = files[span.file_index] if span.file_index in known else None
        own = [r for r in regions if file is not None and r.path == file.path]
        kind = "" if file is None or changed else file.format
        out = removed[begin:stop] - first
        found += _cut(span, out, lengths[first:end], kind, own)
    return tuple(found)


def _cut(
    span: SourceSpan,
    removed: IntArray,
    lengths: IntArray,
    kind: str,
    regions: Sequence[DamagedRegion],
) -> Iterator[SourceSpan]:
    """Yields the runs of records between those removed."""
    places = None
    if not span.skipped_records:
        places = places_of(span, lengths, kind, regions)
    edges = [-1, *removed.tolist(), span.records]
    for before, after in itertools.pairwise(edges):
        begin, end = before + 1, after
        if begin == end:
            continue
        part = dataclasses.replace(span, records=end - begin)
        if places is None:
            skipped = span.skipped_records + begin
            yield dataclasses.replace(part, skipped_records=skipped)
            continue
        start, stop = span.start_bytes, span.stop_bytes
        # What lies before the first record, or after the last, stays with it.
        if begin:
            start = int(places[begin])
        if end < span.records:
            frame_bytes = FRAME_OVERHEAD_BYTES + int(lengths[end - 1])
            taken = 1 if kind in NUMBERED else frame_bytes
            stop = int(places[end - 1]) + taken
        yield dataclasses.replace(part, start_bytes=start, stop_bytes=stop)


def places_of(
    span: SourceSpan,
    lengths: IntArray,
    kind: str,
    regions: Sequence[DamagedRegion],
) -> IntArray | None:
    """Returns the place of each record of a span in its file.

    Args:
        span: The range of the input that was taken.
        lengths: int64 [records], the bytes of each record.
        kind: The format of the file.
        regions: Regions of that file that were set aside.

    Returns:
        int64 [records]: byte offsets of frames, or numbers of records. None if only the
        file itself can tell, or nothing.
    """
    if kind in NUMBERED:
        return record_numbers(span, np.arange(len(lengths)), regions)
    if kind == "tfrecord":
        return frame_offsets(span, lengths, regions)
    return None
