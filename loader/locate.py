"""Where a row of a global batch comes from, down to the byte of its source file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.arrayrecord.footer import Footer, read_footer
from gristmill.dataset.metadata.provenance import (
    frame_offset,
    part_count,
    read_damaged_regions,
    read_source_files,
    written_position,
)
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.batches import Batches, row_at
from gristmill.loader.dataset import Dataset, ShardInfo
from gristmill.loader.indices import IntArray, checked_count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Location:
    """Where a row of a global batch comes from.

    What is not known is None; nothing is guessed.

    Attributes:
        epoch: The epoch of its dataset in which the record is seen here.
        dataset: The dataset's name in a mixture, its path otherwise.
        record: Number of the record in the dataset.
        shard: The file that holds it.
        record_in_shard: Its number in that file.
        offset_bytes: Offset in that file of the chunk that holds the record.
        source_path: The TFRecord file it was converted from, as given to the
            conversion.
        source_offset_bytes: Offset of the record's frame in that file; in the
            decompressed file where `source_compression` is not `none`.
        source_range_bytes: The half-open range of that file, counted likewise, in
            which the frame lies.
        source_record_in_range: Its number among the records of that range, without
            those in quarantine.
        source_compression: `none`, `gzip` or `zlib`.
        source_note: Why part of the source is not known.
    """

    epoch: int
    dataset: str
    record: int
    shard: str
    record_in_shard: int
    offset_bytes: int
    source_path: str | None = None
    source_offset_bytes: int | None = None
    source_range_bytes: tuple[int, int] | None = None
    source_record_in_range: int | None = None
    source_compression: str | None = None
    source_note: str | None = None


def locate(batches: Batches, step: int, row: int) -> Location:
    """Returns where a row of a step's global batch comes from.

    It reads no source file. It reads the index and the footer of the shard; where
    several records share a chunk, also the record's chunk and a few others.
    """
    rows = len(batches.schedule.positions(step))
    row = checked_count(row, what="row", least=0, most=rows - 1)
    seen = row_at(batches, step, row)
    dataset, record = seen.dataset, seen.record
    shards, in_shard = dataset.find([record])
    info = dataset.shard(int(shards[0]))
    return Location(
        epoch=seen.epoch,
        dataset=seen.name,
        record=record,
        shard=info.path,
        record_in_shard=int(in_shard[0]),
        offset_bytes=dataset.offset_bytes(record),
        **_source(dataset, info, int(in_shard[0])),
    )


def _source(dataset: Dataset, info: ShardInfo, record: int) -> dict[str, Any]:
    """Returns what is known of the source of a shard's record."""
    manifest = dataset.manifest
    if manifest is None or dataset.split is None:
        split = None
    else:
        split = manifest.splits[dataset.split].parts[(info.edition or 1) - 1]
    shard = info.path.removeprefix(dataset.path).lstrip("/")
    if split is not None and (parts := part_count(split)) is not None:
        part, position = written_position(dataset.path, split, shard, record)
        of_part = f" of part {part} of {parts}" if parts > 1 else ""
        return {
            "source_note": "written by a Python program, with gristmill.dataset.Writer:"
            f" record {position:,}{of_part}"
        }
    if split is None or not info.spans:
        return {
            "source_note": "only datasets that gristmill converted from TFRecord files "
            "have a list of their sources"
        }
    files = read_source_files(dataset.path, split)
    spans = [
        span
        for span in info.spans
        if span.records > 0 and None not in (span.start_bytes, span.stop_bytes)
    ]
    if not files or any(not 0 <= span.file_index < len(files) for span in spans):
        return {
            "source_note": "the dataset's list of input files is missing or damaged"
        }
    options = split.source.get("options")
    function = options.get("map") if isinstance(options, dict) else None
    if info.dropped_records or info.added_records:
        return _one_of(spans, files) | {
            "source_note": f"the function {function} returned more or fewer records "
            "than it was given: the frame of each record was not kept"
        }
    ends = np.cumsum([span.records for span in spans])
    if not spans or ends[-1] != info.records:
        return {"source_note": "the ranges of the inputs do not add up to the shard"}
    number = int(np.searchsorted(ends, record, side="right"))
    span = spans[number]
    first = int(ends[number]) - span.records
    found = _one_of([span], files) | {"source_record_in_range": record - first}
    if function is not None:
        return found | {
            "source_note": f"the function {function} changed the records: their "
            "lengths in the source were not kept"
        }
    regions = [
        region
        for region in read_damaged_regions(dataset.path, shard)
        if region.path == found["source_path"]
    ]

    def lengths_of(begin: int, end: int) -> list[int]:
        at = info.first_record + first
        return list(map(len, dataset.read(np.arange(at + begin, at + end))))

    offset = frame_offset(
        span,
        record - first,
        _runs(info, first, first + span.records, lengths_of),
        lengths_of=lengths_of,
        regions=regions,
    )
    if offset is None:
        return found | {
            "source_note": "the frames do not add up to the range: the list of damaged "
            "regions of this input is missing"
        }
    return found | {"source_offset_bytes": offset}


def _one_of(spans: list[SourceSpan], files: Any) -> dict[str, Any]:
    """Returns the file and range of spans that are all of one file."""
    if len({span.file_index for span in spans}) != 1:
        return {}
    file = files[spans[0].file_index]
    starts = [span.start_bytes for span in spans if span.start_bytes is not None]
    stops = [span.stop_bytes for span in spans if span.stop_bytes is not None]
    return {
        "source_path": file.path,
        "source_range_bytes": (min(starts), max(stops)),
        "source_compression": file.compression,
    }


@functools.lru_cache(maxsize=64)
def _footer(shard: str, file_bytes: int, digest: str | None) -> Footer:
    # Callers that locate one record often locate all of a batch.
    del digest  # In the key of the cache: a shard at this path may have been replaced.
    storage = storage_for(shard)
    return read_footer(
        lambda begin, end: storage.read(shard, begin, end), file_bytes, path=shard
    )


def _runs(
    info: ShardInfo,
    begin: int,
    end: int,
    lengths_of: Callable[[int, int], Sequence[int]],
) -> IntArray:
    """Returns int64 [runs, 2], how many records and bytes of a range each chunk has.

    The range is of the shard's records, `lengths_of` of numbers within the range.
    """
    footer = _footer(info.path, info.file_bytes or 0, info.records_digest)
    ends = np.cumsum(footer.chunk_records)
    begins = ends - footer.chunk_records
    chunks = slice(
        int(np.searchsorted(ends, begin, side="right")),
        int(np.searchsorted(begins, end, side="left")),
    )
    firsts, lasts = np.maximum(begins[chunks], begin), np.minimum(ends[chunks], end)
    sizes = footer.chunk_decoded_bytes[chunks].copy()
    for chunk in np.flatnonzero(lasts - firsts < footer.chunk_records[chunks]).tolist():
        part = lengths_of(int(firsts[chunk]) - begin, int(lasts[chunk]) - begin)
        sizes[chunk] = sum(part)
    return np.stack([lasts - firsts, sizes], axis=1)
