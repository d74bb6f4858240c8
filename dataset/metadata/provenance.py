"""The input file, and the frame in it, that a record came from.

A conversion keeps the records of an input in their order, and the table of shards
records the range of each input that went into a shard. A frame is 16 bytes longer than
its record, so the lengths of the records before it say where a record's frame begins:
the input itself is not needed. Every result is checked against the end of the range.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.formats.tfrecord.frame_layout import FRAME_OVERHEAD_BYTES
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import SourceFile
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for

PART_COLUMN = "part"  # Column of a table of shards: int64 [shards], the part of each.
PARTS_FIELD = "parts"  # Field of a split's source: the number of parts.

NUMBERED = ("arrayrecord", "parquet")
"""Formats in which the place of a record is its number."""

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DamagedRegion:
    """Bytes of an input that were set aside: a half-open range of one file.

    Attributes:
        path: The file.
        begin_bytes: Offset of the first byte.
        end_bytes: One past the last.
        compressed: Whether offsets count the compressed bytes of the file as stored.
        rows: Half-open range of rows if the file is a table, else None.
    """

    path: str
    begin_bytes: int
    end_bytes: int
    compressed: bool
    rows: tuple[int, int] | None = None


def numbers_of(files: Sequence[SourceFile], path: str) -> list[int]:
    """Returns whether each of some files has a path."""
    return [number for number, other in enumerate(files) if other.path == path]


def part_count(split: Split) -> int | None:
    """Returns the number of parts that a split was made in, None if it has none."""
    parts = split.source.get(PARTS_FIELD)
    return parts if type(parts) is int else None


def part_column(table: ShardTable, *, where: str) -> IntArray:
    """Returns the part of each shard, int64 [shards], for a split that has parts.

    Args:
        table: The table of its shards.
        where: The table's path, for messages.

    Raises:
        InvalidDatasetError: It does not have them.
    """
    column = table.columns.get(PART_COLUMN)
    if column is None or column.shape != (len(table),) or column.dtype != np.int64:
        raise InvalidDatasetError(
            "table of shards does not say which part each is of",
            where=where,
            cure="restore it from a copy, or write the split again with overwrite=True",
        )
    return column


def written_position(
    dataset: str, split: Split, shard: str, record: int
) -> tuple[int, int]:
    """Returns the part of a record made by a `Writer`, and its number in the part.

    Args:
        dataset: The dataset's directory.
        split: A split that was made in parts.
        shard: The shard, relative to the dataset.
        record: Number of the record in the shard.

    Raises:
        InvalidDatasetError: The table does not have the parts.
    """
    place = layout.join(dataset, split.table)
    rows, parts, before = _written_shards(place, split.table_crc32c)
    row = rows[shard]
    return int(parts[row]), int(before[row]) + record


@functools.lru_cache(maxsize=2)
def _written_shards(
    place: str, crc32c: int
) -> tuple[dict[str, int], IntArray, IntArray]:
    """Returns each shard's row, its part, and the records of the part before it."""
    del crc32c  # Part of the cache's key: the split may have been replaced.
    table = ShardTable.decode(storage_for(place).read(place), where=place)
    parts = part_column(table, where=place)
    before = np.cumsum(table.records) - table.records
    firsts = np.unique(parts, return_index=True, return_inverse=True)[1:]
    begins = before[firsts[0]][firsts[1]]
    return {path: row for row, path in enumerate(table.paths)}, parts, before - begins


def read_damaged_regions(dataset: str, shard: str) -> Sequence[DamagedRegion]:
    """Returns the regions of a shard's inputs that its quarantine lists."""
    path = layout.join(dataset, layout.QUARANTINE_DIR, f"{shard}.jsonl")
    content = storage_for(path).load(path)
    if content is None:
        return ()
    text = content.data.decode("utf-8", "surrogateescape")
    regions = []
    try:
        # Does not split at U+2028 and the like, which texts can have.
        for fields in map(json.loads, text.removesuffix("\n").split("\n")):
            rows = None
            if "begin_row" in fields:
                rows = int(fields["begin_row"]), int(fields["end_row"])
            region = DamagedRegion(
                path=str(fields["file"]),
                begin_bytes=int(fields["begin_bytes"]),
                end_bytes=int(fields["end_bytes"]),
                compressed=bool(fields["compressed"]),
                rows=rows,
            )
            begin, end = rows or (region.begin_bytes, region.end_bytes)
            if not 0 <= begin < end + (rows is not None) < 1 << 62:
                return ()
            regions.append(region)
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()  # `frame_offset` then returns None.
    return regions


def record_numbers(
    span: SourceSpan, records: IntArray, regions: Sequence[DamagedRegion]
) -> IntArray | None:
    """Returns the numbers of records in a file whose places are record numbers.

    Args:
        span: The range of the input that was taken.
        records: int64 [records], their numbers among the records of the span.
        regions: Regions of that file that were set aside.

    Returns:
        int64 [records]; None if they are not known.
    """
    if span.start_bytes is None or span.stop_bytes is None:
        return None
    numbers = span.start_bytes + records
    lost = span.stop_bytes - span.start_bytes - span.records
    aside = sorted(region.rows for region in regions if region.rows is not None)
    for begin, end in aside:
        if span.start_bytes <= begin < span.stop_bytes:
            lost -= min(end, span.stop_bytes) - begin
            numbers = np.where(numbers >= begin, numbers + end - begin, numbers)
    return numbers if lost == 0 else None  # The list of regions is incomplete.


def frame_offsets(
    span: SourceSpan, lengths: IntArray, regions: Sequence[DamagedRegion]
) -> IntArray | None:
    """Returns the offset of the frame of each record of a span.

    `frame_offset` does so for one record, without all lengths.

    Args:
        span: The range of the input that was taken.
        lengths: int64 [records], the bytes of each record.
        regions: Regions of that file that were set aside.

    Returns:
        int64 [records], byte offsets in the decompressed file; or None if lengths do
        not fit the span.
    """
    if span.start_bytes is None or span.stop_bytes is None:
        return None
    ends = np.cumsum(lengths + FRAME_OVERHEAD_BYTES)
    edges = span.start_bytes + np.append(0, ends)
    for region in sorted(regions, key=lambda region: region.begin_bytes):
        begin = region.begin_bytes
        if region.compressed or not span.start_bytes <= begin < span.stop_bytes:
            continue
        at = int(np.searchsorted(edges, begin))
        if at == len(edges) or edges[at] != begin:
            return None
        edges[at:] += region.end_bytes - begin
    return edges[:-1] if edges[-1] == span.stop_bytes else None


def frame_offset(
    span: SourceSpan,
    record: int,
    runs: IntArray,
    *,
    lengths_of: Callable[[int, int], Sequence[int]],
    regions: Sequence[DamagedRegion] = (),
) -> int | None:
    """Returns the offset of a record's frame, None if lengths do not fit the span.

    Args:
        span: The range of the input that was taken.
        record: Number of the record among those of the span.
        runs: int64 [runs, 2], the number of records in each run of the span's records,
            and their bytes. One chunk of a shard holds one run.
        lengths_of: Returns the lengths of records [first, stop) of the span, in bytes.
            Called for few runs.
        regions: Regions of that file that were set aside.

    Returns:
        The byte offset in the decompressed file.
    """
    if span.start_bytes is None or span.stop_bytes is None:
        return None

    def cut(runs: IntArray, run: int) -> IntArray:
        """Splits a run into its records."""
        first = int(runs[:run, 0].sum())
        lengths = lengths_of(first, first + int(runs[run, 0]))
        singles = np.stack([np.ones(len(lengths), np.int64), lengths], axis=1)
        return np.concatenate([runs[:run], singles, runs[run + 1 :]])

    def edges(runs: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the records before each run and its offset; the same for the end."""
        sizes = runs[:, 0] * FRAME_OVERHEAD_BYTES + runs[:, 1]
        offsets = np.concatenate([[span.start_bytes], sizes]).cumsum()
        return np.concatenate([[0], runs[:, 0]]).cumsum(), offsets

    for region in sorted(regions, key=lambda region: region.begin_bytes):
        if region.compressed or not (
            span.start_bytes <= region.begin_bytes < span.stop_bytes
        ):
            continue
        _, offsets = edges(runs)
        run = int(np.searchsorted(offsets, region.begin_bytes, side="right")) - 1
        if offsets[run] != region.begin_bytes and run < len(runs):
            runs = cut(runs, run)
            _, offsets = edges(runs)
            run = int(np.searchsorted(offsets, region.begin_bytes, side="right")) - 1
        if offsets[run] != region.begin_bytes:
            return None
        # A run without records: only bytes between two frames.
        gap = [[0, region.end_bytes - region.begin_bytes]]
        runs = np.concatenate([runs[:run], gap, runs[run:]])
    before, offsets = edges(runs)
    if offsets[-1] != span.stop_bytes or not 0 <= record < before[-1]:
        return None
    run = int(np.searchsorted(before, record, side="right")) - 1
    if before[run] != record:
        before, offsets = edges(cut(runs, run))
        run = int(np.searchsorted(before, record, side="right")) - 1
    return int(offsets[run])
