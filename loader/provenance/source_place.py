"""The source of a record: its file, and its place there by the file's format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.base.errors import CorruptInputError
from gristmill.dataset.formats.streams.inflated_stream import Compression
from gristmill.dataset.formats.tar.find_sample import find_sample
from gristmill.dataset.metadata.lineage import read_lineage
from gristmill.dataset.metadata.provenance import (
    NUMBERED,
    DamagedRegion,
    frame_offset,
    part_count,
    read_damaged_regions,
    written_position,
)
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.sources import SourceFile, read_source_files
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.shards.open_shard import stored_footer
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.data.shard_info import ShardInfo
from gristmill.loader.provenance.found_record import (
    Found,
    changed_note,
    follow,
    record_number,
)


def recorded_source(dataset: Dataset, info: ShardInfo, record: int) -> dict[str, Any]:
    """Returns the known fields of `Location` for the source of a shard's record."""
    committed, edition = dataset.committed, info.edition or 1
    split = None if committed is None else committed.part(edition)
    before = committed.parts[: committed.place(edition)] if committed else ()
    shard = info.path.removeprefix(dataset.path).lstrip("/")
    if split is not None and (parts := part_count(split)) is not None:
        part, position = written_position(dataset.path, split, shard, record)
        of_part = f" of part {part} of {parts}" if parts > 1 else ""
        if split.removed is not None:
            of_part += ", without those that were removed"
        return {
            "source_note": "written by a Python program, with gristmill.dataset.Writer:"
            f" record {position:,}{of_part}"
        }
    taken = taken_spans(dataset, info)
    if isinstance(taken, str):
        return {"source_note": taken}
    split, files, spans = taken
    function = split.function
    if info.dropped_records or info.added_records:
        return file_and_range(spans, files) | {
            "source_note": (
                f"records were selected, {split.source['selected']}"
                if "selected" in split.source
                else f"the function {function} returned more or fewer records than it "
                "was given"
            )
            + ": the place of each record was not kept"
        }
    ends = np.cumsum([span.records for span in spans])
    if not spans or ends[-1] != info.records:
        return {"source_note": "the ranges of the inputs do not add up to the shard"}
    number = int(np.searchsorted(ends, record, side="right"))
    span = spans[number]
    first = int(ends[number]) - span.records
    file = files[span.file_index]
    found = Found(
        file,
        span,
        record - first + span.skipped_records,
        None if function else info.first_record + first - span.skipped_records,
        regions_of(dataset, split, shard, file),
    )
    whole = not (split.dropped_records or split.added_records)
    whole &= not split.quarantined_regions
    found, fields = follow(
        found,
        read_lineage(dataset.path, split),
        records=split.records if whole else -1,
        begin=sum(part.records for part in before),
    )
    return {"source_note": changed_note(function), **fields, **place_of(dataset, found)}


def taken_spans(
    dataset: Dataset, info: ShardInfo
) -> tuple[Split, Sequence[SourceFile], list[SourceSpan]] | str:
    """Returns the spans that a shard was made of, or a note why they are not known.

    Args:
        dataset: One that is not joined of others.
        info: A shard of it.

    Returns:
        The edition, its input files, and the spans of the shard that have records. They
        need not add up to the shard.
    """
    committed, edition = dataset.committed, info.edition or 1
    if committed is None or not info.spans:
        return (
            "only datasets that gristmill converted from files have a list of their "
            "sources"
        )
    split = committed.part(edition)
    files = read_source_files(dataset.path, split)
    spans = [
        span
        for span in info.spans
        if span.records > 0 and None not in (span.start_bytes, span.stop_bytes)
    ]
    if not files or any(not 0 <= span.file_index < len(files) for span in spans):
        return "the dataset's list of input files is missing or damaged"
    return split, files, spans


def regions_of(
    dataset: Dataset, split: Split, shard: str, file: SourceFile
) -> list[DamagedRegion]:
    """Returns the regions of a file that were set aside on the way into a shard."""
    if not split.quarantined_regions:
        return []
    found = read_damaged_regions(dataset.path, shard)
    return [region for region in found if region.path == file.path]


def place_of(dataset: Dataset, found: Found) -> dict[str, Any]:
    """Returns the place of a record in the file where it was found last."""
    file, span = found.file, found.span
    fields: dict[str, Any] = {
        "source_path": file.path,
        "source_format": file.format,
        "source_compression": file.compression,
        "source_record_in_range": found.number,
    }
    if file.format in NUMBERED:
        number = record_number(found)
        lost = {
            "source_note": "records of the range before this one were set aside, or "
            "left out"
        }
        return fields | (lost if number is None else {"source_record": number})
    fields |= file_and_range([span], {span.file_index: file})
    if file.format == "webdataset":
        return fields | _sample(dataset, found)
    if found.at is None:
        return fields
    if file.format != "tfrecord":
        return fields | {
            "source_note": "only the file tells the line: gristmill trace reads it, if "
            "the file is as it was"
        }
    at = found.at

    def lengths_of(begin: int, end: int) -> list[int]:
        return list(map(len, dataset.read(np.arange(at + begin, at + end))))

    offset = frame_offset(
        span,
        found.number,
        _across_shards(dataset, at, at + span.records, lengths_of),
        lengths_of=lengths_of,
        regions=found.regions,
    )
    if offset is None:
        return fields | {
            "source_note": "the frames do not add up to the range: the list of damaged "
            "regions of this input is missing"
        }
    return fields | {"source_offset_bytes": offset}


def file_and_range(
    spans: list[SourceSpan], files: Mapping[int, SourceFile] | Sequence[SourceFile]
) -> dict[str, Any]:
    """Returns the file and range of spans that are all of one file."""
    if len({span.file_index for span in spans}) != 1:
        return {}
    file = files[spans[0].file_index]
    starts = [span.start_bytes for span in spans if span.start_bytes is not None]
    stops = [span.stop_bytes for span in spans if span.stop_bytes is not None]
    fields: dict[str, Any] = {
        "source_path": file.path,
        "source_format": file.format,
        "source_compression": file.compression,
    }
    if file.format not in NUMBERED:
        fields["source_range_bytes"] = (min(starts), max(stops))
    return fields


def _sample(dataset: Dataset, found: Found) -> dict[str, Any]:
    """Returns the place of a record's sample, by reading the tar."""
    aside = [
        (region.begin_bytes, region.end_bytes)
        for region in found.regions
        if not region.compressed
    ]
    try:
        sample = find_sample(
            found.file.path,
            found.span.start_bytes or 0,
            found.number,
            compression=cast(Compression, found.file.compression),
            regions=aside,
        )
    except (OSError, CorruptInputError):
        sample = None
    if sample is not None and found.at is not None:
        (record,) = dataset.read([found.at + found.number])
        sample = sample if sample.gave(record) else None
    if sample is None:
        return {
            "source_note": "the tar is not there, or is not as it was: the name and "
            "the place of the sample were not kept"
        }
    return {
        "source_sample": sample.key.decode("utf-8", "backslashreplace"),
        "source_offset_bytes": sample.offset,
    }


def _across_shards(
    dataset: Dataset,
    begin: int,
    end: int,
    lengths_of: Callable[[int, int], Sequence[int]],
) -> IntArray:
    """As `records_and_bytes`, of a range of a dataset, in one shard or several."""
    runs = []
    at = begin
    while at < end:
        info = dataset.shard(int(dataset.find([at])[0][0]))
        stop = min(end, info.first_record + info.records)
        shift, first = at - begin, info.first_record

        def of_part(first: int, last: int, shift: int = shift) -> Sequence[int]:
            return lengths_of(shift + first, shift + last)

        footer = cached_footer(info.path, info.file_bytes or 0, info.records_digest)
        runs.append(records_and_bytes(footer, at - first, stop - first, of_part))
        at = stop
    return np.concatenate(runs) if runs else np.empty((0, 2), np.int64)


def records_and_bytes(
    footer: Footer,
    begin: int,
    end: int,
    lengths_of: Callable[[int, int], Sequence[int]],
) -> IntArray:
    """Returns int64 [chunks, 2], how many records and bytes of a range each chunk has.

    Args:
        footer: That of the shard.
        begin: Number, in the shard, of the first record of the range.
        end: Number after its last record.
        lengths_of: Returns the bytes of each record between two numbers, counted from
            `begin`. It is asked for chunks that reach out of the range.
    """
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


@functools.lru_cache(maxsize=64)
def cached_footer(shard: str, file_bytes: int, digest: str | None) -> Footer:
    """Returns the footer of a shard of a size and a digest."""
    # Callers that locate one record often locate all of a batch.
    del digest  # In the key of the cache: a shard at this path may have been replaced.
    return stored_footer(shard, file_bytes)
