"""The source of a record, from the files of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.dataset.metadata.lineage import read_lineage
from gristmill.dataset.metadata.provenance import (
    part_count,
    read_damaged_regions,
    read_source_files,
    written_position,
)
from gristmill.loader.data.dataset import Dataset, ShardInfo
from gristmill.loader.provenance.found_record import Found
from gristmill.loader.provenance.passed_shards import changed_note, follow
from gristmill.loader.provenance.source_place import file_and_range, place_of


def recorded_source(dataset: Dataset, info: ShardInfo, record: int) -> dict[str, Any]:
    """Returns the known source of a shard's record: fields of `Location`."""
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
        return file_and_range(spans, files) | {
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
    found = Found(
        file,
        span,
        record - first + span.skipped_records,
        None if function else info.first_record + first - span.skipped_records,
        [
            region
            for region in (
                read_damaged_regions(dataset.path, shard)
                if split.quarantined_regions
                else ()
            )
            if region.path == file.path
        ],
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
