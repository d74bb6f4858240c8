"""Where a row of a global batch comes from, down to the byte of its source file."""

from __future__ import annotations

import dataclasses

from gristmill.loader.batches import Batches, row_at
from gristmill.loader.indices import checked_count
from gristmill.loader.provenance.passed_shards import PassedShard
from gristmill.loader.provenance.recorded_source import recorded_source


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
        **recorded_source(part, info, int(in_shard[0])),
    )
