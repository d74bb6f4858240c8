"""The place of a record in the file that it was read from, by the file's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from gristmill.dataset.base.errors import CorruptInputError
from gristmill.dataset.formats.streams.inflated_stream import Compression
from gristmill.dataset.formats.tar.find_sample import find_sample
from gristmill.dataset.metadata.provenance import NUMBERED, SourceFile, frame_offset
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.chunk_sizes import cached_footer, records_and_bytes
from gristmill.loader.provenance.found_record import Found, record_number


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
