"""Where a row of a global batch comes from, down to the byte of its source file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from gristmill.dataset.arrayrecord.footer import Footer, read_footer
from gristmill.dataset.errors import CorruptInputError
from gristmill.dataset.metadata.lineage import Ancestor, read_lineage
from gristmill.dataset.metadata.provenance import (
    DamagedRegion,
    SourceFile,
    frame_offset,
    part_count,
    read_damaged_regions,
    read_source_files,
    written_position,
)
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.streams.inflated_stream import Compression
from gristmill.dataset.tar.find_sample import find_sample
from gristmill.loader.batches import Batches, row_at
from gristmill.loader.dataset import Dataset, ShardInfo
from gristmill.loader.indices import IntArray, checked_count

# Formats in which the place of a record is its number.
_NUMBERED = ("arrayrecord", "parquet")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassedShard:
    """A shard of another dataset that a record was read from.

    Attributes:
        path: The file, as the conversion that read it was given it.
        record: The record's number in it.
    """

    path: str
    record: int


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
        source_path: The file it was converted from, as given to the conversion. Of a
            dataset that was made of another one, the file that this one was made of.
        source_format: The format of that file, such as `tfrecord`.
        source_record: The number of the record or row in that file, of a format that
            numbers them: ArrayRecord, Parquet. The fields in bytes are None then.
        source_offset_bytes: Offset of the record's frame in that file, or of the first
            header of its sample; in the decompressed file where `source_compression`
            is not `none`.
        source_sample: The name of the sample in a tar of WebDataset.
        source_range_bytes: The half-open range of that file, counted likewise, in
            which the frame lies.
        source_record_in_range: Its number among the records of that range, without
            those in quarantine.
        source_compression: `none`, `gzip`, `zlib` or `zstd`.
        source_note: Why part of the source is not known.
        passed: The shards of other datasets that it was read from on the way, the
            nearest first. They need not be there any more.
    """

    epoch: int
    dataset: str
    record: int
    shard: str
    record_in_shard: int
    offset_bytes: int
    source_path: str | None = None
    source_format: str | None = None
    source_record: int | None = None
    source_offset_bytes: int | None = None
    source_sample: str | None = None
    source_range_bytes: tuple[int, int] | None = None
    source_record_in_range: int | None = None
    source_compression: str | None = None
    source_note: str | None = None
    passed: tuple[PassedShard, ...] = ()


def locate(batches: Batches, step: int, row: int) -> Location:
    """Returns where a row of a step's global batch comes from.

    It reads the index and the footer of the shard; where several records share a chunk,
    also the record's chunk and a few others. Of source files it reads tars alone, if
    they are there: from the begin of the range to the sample.
    """
    rows = len(batches.schedule.positions(step))
    row = checked_count(row, what="row", least=0, most=rows - 1)
    seen = row_at(batches, step, row)
    dataset, record = seen.dataset, seen.record
    shards, in_shard = dataset.find([record])
    part, number = dataset.part_of(int(shards[0]))
    info = part.shard(number)
    return Location(
        epoch=seen.epoch,
        dataset=seen.name if batches.names else part.path,
        record=record,
        shard=info.path,
        record_in_shard=int(in_shard[0]),
        offset_bytes=dataset.offset_bytes(record),
        **_source(part, info, int(in_shard[0])),
    )


class _Found(NamedTuple):
    """Where a record was found, on the way to its source.

    Attributes:
        file: The file that it was read from.
        span: The range of the file that was read with it.
        number: Its number among the records of the range.
        at: Number, in the dataset, of the first of them; None if they are not in the
            dataset as they were in the range.
        regions: What was set aside of that file.
    """

    file: SourceFile
    span: SourceSpan
    number: int
    at: int | None
    regions: Sequence[DamagedRegion]


def _source(dataset: Dataset, info: ShardInfo, record: int) -> dict[str, Any]:
    """Returns what is known of the source of a shard's record."""
    committed, edition = dataset.committed, info.edition or 1
    before = () if committed is None else committed.parts[: edition - 1]
    split = None if committed is None else committed.parts[edition - 1]
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
            "source_note": "only datasets that gristmill converted from files have a "
            "list of their sources"
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
            "than it was given: the place of each record was not kept"
        }
    ends = np.cumsum([span.records for span in spans])
    if not spans or ends[-1] != info.records:
        return {"source_note": "the ranges of the inputs do not add up to the shard"}
    number = int(np.searchsorted(ends, record, side="right"))
    span = spans[number]
    first = int(ends[number]) - span.records
    file = files[span.file_index]
    found = _Found(
        file,
        span,
        record - first,
        None if function else info.first_record + first,
        [
            region
            for region in read_damaged_regions(dataset.path, shard)
            if region.path == file.path
        ],
    )
    whole = not (split.dropped_records or split.added_records)
    whole &= not split.quarantined_regions
    found, fields = _through(
        found,
        read_lineage(dataset.path, split),
        records=split.records if whole else -1,
        begin=sum(part.records for part in before),
    )
    return {"source_note": _changed(function), **fields, **_place(dataset, found)}


def _changed(function: str | None) -> str | None:
    if function is None:
        return None
    return (
        f"the function {function} changed the records: their lengths in the source "
        "were not kept"
    )


def _through(
    found: _Found, ancestors: Sequence[Ancestor], *, records: int, begin: int
) -> tuple[_Found, dict[str, Any]]:
    """Follows a record through the datasets that it was read from.

    Args:
        found: Where it was found.
        ancestors: These datasets, the nearest first.
        records: How many records the last edition has, -1 if some were lost on the
            way into it.
        begin: Number, in the last dataset, of the first of them.

    Returns:
        Where it was found last, and fields of its location.
    """
    passed: list[PassedShard] = []
    fields: dict[str, Any] = {}
    for ancestor in ancestors:
        number = _numbered(found)
        if number is None:
            break
        shard = found.span.file_index
        taken = ancestor.taken(shard, number)
        if taken is None:
            if ancestor.function is not None:
                fields["source_note"] = (
                    f"the function {ancestor.function} returned more or fewer records "
                    f"on the way into {ancestor.dataset}: what they were made of was "
                    "not kept"
                )
            break
        passed.append(PassedShard(path=found.file.path, record=number))
        if ancestor.function is not None:
            fields["source_note"] = _changed(ancestor.function)
        elif found.at is not None and ancestor.records != records:
            fields["source_note"] = (
                "records were set aside on the way: their lengths, and so the bytes of "
                "others, are not known"
            )
        same = found.at is not None and ancestor.function is None
        same &= ancestor.records == records
        before = int(ancestor.columns["records"][:shard].sum())
        found = _Found(
            taken.file,
            taken.span,
            before + number - taken.first_record,
            begin + taken.first_record if same else None,
            taken.regions,
        )
    return found, fields | {"passed": tuple(passed)}


def _numbered(found: _Found) -> int | None:
    """Returns a record's number in a file whose places are such; None if not known."""
    span = found.span
    if found.file.format not in _NUMBERED:
        return None
    if span.start_bytes is None or span.stop_bytes is None:
        return None
    number = span.start_bytes + found.number
    lost = span.stop_bytes - span.start_bytes - span.records
    aside = sorted(region.rows for region in found.regions if region.rows is not None)
    for begin, end in aside:
        if span.start_bytes <= begin < span.stop_bytes:
            lost -= min(end, span.stop_bytes) - begin
            number += end - begin if begin <= number else 0
    return number if lost == 0 else None  # Not all that was set aside is listed.


def _place(dataset: Dataset, found: _Found) -> dict[str, Any]:
    """Returns the place of a record in the file where it was found last."""
    file, span = found.file, found.span
    fields: dict[str, Any] = {
        "source_path": file.path,
        "source_format": file.format,
        "source_compression": file.compression,
        "source_record_in_range": found.number,
    }
    if file.format in _NUMBERED:
        number = _numbered(found)
        lost = {"source_note": "records of the range before this one were set aside"}
        return fields | (lost if number is None else {"source_record": number})
    fields |= _one_of([span], {span.file_index: file})
    if file.format == "webdataset":
        return fields | _sample(dataset, found)
    if found.at is None:
        return fields
    if file.format != "tfrecord":
        return fields | {"source_note": "the lengths in the source were not kept"}
    at = found.at

    def lengths_of(begin: int, end: int) -> list[int]:
        return list(map(len, dataset.read(np.arange(at + begin, at + end))))

    offset = frame_offset(
        span,
        found.number,
        _runs_across(dataset, at, at + span.records, lengths_of),
        lengths_of=lengths_of,
        regions=found.regions,
    )
    if offset is None:
        return fields | {
            "source_note": "the frames do not add up to the range: the list of damaged "
            "regions of this input is missing"
        }
    return fields | {"source_offset_bytes": offset}


def _sample(dataset: Dataset, found: _Found) -> dict[str, Any]:
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


def _one_of(
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
    if file.format not in _NUMBERED:
        fields["source_range_bytes"] = (min(starts), max(stops))
    return fields


def _runs_across(
    dataset: Dataset,
    begin: int,
    end: int,
    lengths_of: Callable[[int, int], Sequence[int]],
) -> IntArray:
    """Returns what `_runs` does for records of a dataset, in one shard or several."""
    runs = []
    at = begin
    while at < end:
        info = dataset.shard(int(dataset.find([at])[0][0]))
        stop = min(end, info.first_record + info.records)
        shift, first = at - begin, info.first_record

        def of_part(first: int, last: int, shift: int = shift) -> Sequence[int]:
            return lengths_of(shift + first, shift + last)

        runs.append(_runs(info, at - first, stop - first, of_part))
        at = stop
    return np.concatenate(runs) if runs else np.empty((0, 2), np.int64)


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
