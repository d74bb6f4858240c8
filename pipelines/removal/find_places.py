"""The records of a dataset that come from given places in its source files."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import read_footer
from gristmill.dataset.arrayrecord.walk import walk_chunks
from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.cut_spans import places_of as places_by_lengths
from gristmill.dataset.metadata.lineage import read_lineage
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.provenance import NUMBERED, read_damaged_regions
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import SourceFile, read_source_files
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.provenance.document_source import offset_between
from gristmill.loader.provenance.places_between import places_of as places_behind
from gristmill.pipelines.text.location import FilePlace
from gristmill.pipelines.text.source_details import input_file_of, line_begin, places_in

Int64 = npt.NDArray[np.int64]


class _Run(NamedTuple):
    """Records of a shard that follow each other, and the span that they are from."""

    shard: int
    first_record: int  # In the edition.
    in_shard: int
    span: SourceSpan


def find_places(
    dataset: str, split: Split, places: Sequence[FilePlace]
) -> Iterator[tuple[int, int]]:
    """Yields the records that were made of places.

    It reads the footers of the shards that have some, or their chunks where several
    records share one. Of files of lines and of tars it reads the ranges that have some:
    only the files say where these records begin.

    Yields:
        The number of a place, and that of a record of the split.
    """
    first = 0
    for part in split.parts:
        edition = _Edition(dataset, part)
        wanted: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, place in enumerate(places):
            for file, at in edition.own_places(place):
                wanted[file].append((at, number))
        for file, asked in sorted(wanted.items()):
            for number, record in edition.records_at(file, asked):
                yield number, first + record
        first += part.records


class _Edition:
    """An edition of which records are looked for."""

    def __init__(self, dataset: str, split: Split):
        self._dataset, self._split = dataset, split
        self._files = read_source_files(dataset, split)
        self._table = read_table(dataset, split)
        self._changed = split.function is not None
        self._numbers: dict[str, list[int]] = defaultdict(list)
        for number, file in enumerate(self._files):
            self._numbers[file.path].append(number)

    def own_places(self, place: FilePlace) -> Iterator[tuple[int, int]]:
        """Yields the numbers of files of the edition, and the place in them."""
        if place.path in self._numbers:
            for number in self._numbers[place.path]:
                at: int | None = place.number
                if place.is_line:
                    at = _line_begin(self._files[number], place.number)
                if at is not None:
                    yield number, at
        elif not place.is_line:
            lineage = read_lineage(self._dataset, self._split)
            yield from places_behind(
                self._files, lineage, place.path, place.number, offset_between
            )

    def records_at(
        self, file: int, asked: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int]]:
        """Yields what was asked for at places of a file, and the record there."""
        asked = sorted(asked)
        at = np.array([place for place, _ in asked], np.int64)
        for run in _runs(self._table, file):
            begin, end = np.searchsorted(
                at, [run.span.start_bytes or 0, run.span.stop_bytes or 0]
            ).tolist()
            if begin == end:
                continue
            places = self._places(run)
            rows = np.searchsorted(places, at[begin:end])
            for (place, number), row in zip(asked[begin:end], rows, strict=True):
                if row < len(places) and places[row] == place:
                    yield number, run.first_record + int(row)

    def _places(self, run: _Run) -> Int64:
        """Returns the places of the records of a run; none if they are not known."""
        span, source = run.span, self._files[run.span.file_index]
        shard = self._table.paths[run.shard]
        if not (self._changed and source.format not in NUMBERED):
            regions = []
            if self._table.columns["quarantined_regions"][run.shard]:
                listed = read_damaged_regions(self._dataset, shard)
                regions = [one for one in listed if one.path == source.path]
            lengths = np.zeros(span.records, np.int64)
            if source.format == "tfrecord":
                path = f"{self._dataset}/{shard}"
                size = int(self._table.file_bytes[run.shard])
                whole = _lengths(path, size, int(self._table.file_crc32cs[run.shard]))
                lengths = whole[run.in_shard : run.in_shard + span.records]
            if not span.skipped_records:
                found = places_by_lengths(span, lengths, source.format, regions)
                if found is not None:
                    return found
        first = span.skipped_records
        return _read_places(source, span)[first : first + span.records]


def _runs(table: ShardTable, file: int) -> Iterator[_Run]:
    """Yields the runs of records that are from a file."""
    columns, ends = table.columns, table.columns["span_ends"]
    firsts = np.cumsum(table.records) - table.records
    counts = columns["span_records"]
    before = np.cumsum(counts) - counts
    rows = np.flatnonzero(
        (columns["span_file"] == file)
        & (columns["span_start_bytes"] >= 0)
        & (counts > 0)
    )
    shards = np.searchsorted(ends, rows, side="right")
    for row, shard in zip(rows.tolist(), shards.tolist(), strict=True):
        begin = int(ends[shard - 1]) if shard else 0
        if counts[begin : int(ends[shard])].sum() != table.records[shard]:
            continue  # A function dropped some, or added some.
        in_shard = int(before[row] - before[begin])
        span = table.spans(shard)[row - begin]
        yield _Run(shard, int(firsts[shard]) + in_shard, in_shard, span)


@functools.lru_cache(maxsize=4)
def _lengths(path: str, file_bytes: int, file_crc32c: int) -> Int64:
    """Returns the length of each record of a shard, int64 [records]."""
    del file_crc32c  # In the key of the cache.
    storage = storage_for(path)
    footer = read_footer(functools.partial(storage.read, path), file_bytes, path=path)
    if (footer.chunk_records == 1).all():
        return footer.chunk_decoded_bytes
    begin, end = footer.chunk_offsets[[0, -1]].tolist()
    with storage.open(path, offset=begin, end=end) as file:
        chunks = walk_chunks(file, footer, path=path)
        found = [each.encoded(hashed=True).measure() for each in chunks]
    return np.concatenate(found)


def _read_places(file: SourceFile, span: SourceSpan) -> Int64:
    """Returns the places of the records of a span, as its file has them now.

    There are none if the file is gone, or has not what it had.
    """
    places: list[int] = []
    if span.start_bytes is not None and span.stop_bytes is not None:
        with contextlib.suppress(GristmillError, OSError):
            places = places_in(input_file_of(file), span.start_bytes, span.stop_bytes)
    return np.array(places, np.int64)


def _line_begin(file: SourceFile, line: int) -> int | None:
    with contextlib.suppress(GristmillError, OSError):
        return line_begin(input_file_of(file), line)
    return None
