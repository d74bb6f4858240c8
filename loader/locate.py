"""Where a row of a global batch comes from, down to the byte of its source."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.dataset.arrayrecord import read_footer
from gristmill.dataset.provenance import (
    frame_offsets,
    read_damaged_regions,
    read_source_files,
)
from gristmill.dataset.shard_report import SourceSpan
from gristmill.dataset.storage import storage_for
from gristmill.loader.index_arrays import IntArray, checked_count
from gristmill.loader.mixed_schedule import MixedSchedule
from gristmill.loader.open_dataset import Dataset, ShardInfo
from gristmill.loader.open_dataset import open as open_dataset

if TYPE_CHECKING:
    from gristmill.loader.batches import GlobalBatches

_READ_RECORDS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Location:
    """Where a row of a global batch comes from.

    What a dataset does not know is None. No part of it is a guess.

    Attributes:
        epoch: The epoch of its dataset in which the record is seen here.
        dataset: The dataset's name in a mixture, its path otherwise.
        record: Number of the record in the dataset.
        shard: The file that holds it.
        record_in_shard: Its number there.
        offset_bytes: Where, in that file, the chunk begins that holds the record.
        source_path: The TFRecord file it was converted from, as the conversion was
            given it.
        source_offset_bytes: Where the record's frame begins in that file; in the
            decompressed file where `source_compression` is not `none`.
        source_range_bytes: The half-open range of that file, counted likewise, in
            which the frame lies.
        source_compression: `none`, `gzip` or `zlib`.
        source_note: Why something about the source is not known.
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
    source_compression: str | None = None
    source_note: str | None = None


def locate(batches: GlobalBatches, step: int, row: int) -> Location:
    """Returns where a row of a step's global batch comes from.

    It reads no source file. Of a shard it reads the index and the footer; where several
    records share a chunk, also the records of the shard that one input file gave.

    Args:
        batches: The global batches.
        step: Which step.
        row: Which row of the global batch.

    Raises:
        OutOfRangeError: There is no such step.
        InputError: There is no such row.
        CorruptShardError: The shard does not hold what was written.
    """
    rows = len(batches.schedule.positions(step))
    row = checked_count(row, what="row", least=0, most=rows - 1)
    seen = _seen(batches, step, row)
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


def describe(batches: GlobalBatches, step: int, row: int) -> str:
    """Returns what a row of a step's global batch is, for messages; opens nothing."""
    seen = _seen(batches, step, row)
    shards, in_shard = seen.dataset.find([seen.record])
    return (
        f"{seen.name}, record {seen.record:,} (record {int(in_shard[0]):,} of "
        f"{seen.dataset.shard(int(shards[0])).path}), row {row:,} of step {step:,}"
    )


class _Seen(NamedTuple):
    """What a row of a step is."""

    dataset: Dataset
    name: str
    epoch: int
    record: int


def _seen(batches: GlobalBatches, step: int, row: int) -> _Seen:
    schedule = batches.schedule
    position = schedule.positions(step, slice(row, row + 1))
    if isinstance(schedule, MixedSchedule):
        (number,), position = schedule.mixture.locate(position)
        dataset, stream = batches.datasets[number], schedule.streams[number]
        name = stream.name
    else:
        dataset, stream = batches.datasets[0], schedule.stream
        name = dataset.path
    return _Seen(
        dataset=dataset,
        name=name,
        epoch=int(position[0]) // stream.num_records,
        record=int(stream.records(position)[0]),
    )


def _source(dataset: Dataset, info: ShardInfo, record: int) -> dict[str, Any]:
    """Returns what is known of the source of a shard's record."""
    manifest = dataset.manifest
    if manifest is None or dataset.split is None or not info.spans:
        return {
            "source_note": "only datasets that gristmill converted from TFRecord files "
            "know their sources"
        }
    split = manifest.splits[dataset.split]
    files = read_source_files(dataset.path, split)
    spans = [
        span
        for span in info.spans
        if span.records > 0 and None not in (span.start_bytes, span.stop_bytes)
    ]
    if not files or any(not 0 <= span.file_index < len(files) for span in spans):
        return {"source_note": "the dataset's list of input files is lost or damaged"}
    options = split.source.get("options")
    function = options.get("map") if isinstance(options, dict) else None
    if function is not None:
        # It may have dropped records, added some and changed their lengths.
        return _one_of(spans, files) | {
            "source_note": f"records went through the function {function}: which frame "
            "a record is of was not kept"
        }
    ends = np.cumsum([span.records for span in spans])
    if not spans or ends[-1] != info.records:
        return {"source_note": "the ranges of the inputs do not fit the shard's count"}
    number = int(np.searchsorted(ends, record, side="right"))
    span = spans[number]
    first = int(ends[number]) - span.records
    found = _one_of([span], files)
    shard = _relative(info.path, dataset.path)
    regions = [
        region
        for region in read_damaged_regions(dataset.path, shard)
        if region.path == found["source_path"]
    ]
    lengths = _lengths(
        info.path,
        info.file_bytes or 0,
        info.records_digest,
        first,
        first + span.records,
    )
    offsets = frame_offsets(span, lengths, regions)
    if offsets is None:
        return found | {
            "source_note": "frames do not add up to the range: what was set aside of "
            "this input is not known any more"
        }
    return found | {"source_offset_bytes": int(offsets[record - first])}


def _relative(path: str, directory: str) -> str:
    """Returns a shard's path relative to its dataset."""
    return path.removeprefix(directory).lstrip("/")


def _one_of(spans: list[SourceSpan], files: Any) -> dict[str, Any]:
    """Returns the file and range that hold a record of one of some spans."""
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


@functools.lru_cache(maxsize=16)
def _lengths(
    shard: str, file_bytes: int, digest: str | None, begin: int, end: int
) -> IntArray:
    """Returns int64 [end - begin], the lengths of records of a shard in bytes.

    Who asks for one record often asks for more of the batch: they are kept by all that
    tells the shard from another.
    """
    storage = storage_for(shard)
    footer = read_footer(
        lambda first, last: storage.read(shard, first, last), file_bytes, path=shard
    )
    if (footer.chunk_records == 1).all():
        return footer.chunk_decoded_bytes[begin:end]
    records = open_dataset(shard)
    lengths: list[int] = []
    for at in range(begin, end, _READ_RECORDS):
        lengths += map(len, records[at : min(at + _READ_RECORDS, end)])
    return np.array(lengths, np.int64)
