"""The source files of records, and of documents of packed rows, as runs.

They follow from the tables of shards and the lists of input files: no record is read.
What they say of a record is what `locate` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from gristmill.dataset.metadata.lineage import Ancestor, read_lineage
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.document_source import shard_origins, split_of
from gristmill.loader.provenance.found_record import Found, record_number
from gristmill.loader.provenance.packed_shard import PackedShard
from gristmill.loader.provenance.source_place import (
    file_and_range,
    regions_of,
    taken_spans,
)

SourceRun: TypeAlias = tuple[int, str | None]
"""How many records follow one another, and their file; None if it is not known."""


def runs_of_shard(dataset: Dataset, number: int) -> Iterable[SourceRun]:
    """Returns the files that the records of a shard were made from, in their order.

    Args:
        dataset: One that is not joined of others.
        number: The shard.
    """
    info = dataset.shard(number)
    unknown: list[SourceRun] = [(info.records, None)]
    taken = taken_spans(dataset, info)
    if isinstance(taken, str):
        return unknown
    split, files, spans = taken
    if info.dropped_records or info.added_records:
        return [(info.records, file_and_range(spans, files).get("source_path"))]
    if sum(span.records for span in spans) != info.records:
        return unknown
    shard = info.path.removeprefix(dataset.path).lstrip("/")
    ancestors = read_lineage(dataset.path, split)
    found: list[SourceRun] = []
    for span in spans:
        file = files[span.file_index]
        regions = regions_of(dataset, split, shard, file)
        first = Found(file, span, span.skipped_records, None, regions)
        found += followed(first, ancestors, span.records)
    return found


def runs_of_documents(dataset: Dataset, shard: PackedShard) -> Iterator[SourceRun]:
    """Yields the files that the documents of packed rows come from, in their order.

    Args:
        dataset: One that is not joined of others.
        shard: A shard of it.
    """
    segments, number = shard.segments, shard.number
    try:
        split = split_of(dataset, shard)
        origins = shard_origins(dataset, split, range(number, number + 1))
        spans = [origins.span(span) for span in range(len(segments.span_documents))]
        files = [
            origins.files[range(len(origins.files))[one.file_index]] for one in spans
        ]
    except (IndexError, ValueError):  # The list of inputs is missing or damaged.
        yield segments.documents, None
        return
    ends = segments.span_ends.tolist()
    for span, file, begin, end in zip(spans, files, [0, *ends[:-1]], ends, strict=True):
        places = segments.document_places[begin:end]
        if file.format != "arrayrecord" or not len(places):
            yield len(places), file.path
            continue
        first = int(places[0])
        runs = followed(
            Found(file, span, 0, None, ()),
            origins.ancestors,
            int(places[-1]) - first + 1,
            number=first,
        )
        before = 0
        for count, path in runs:
            first += count
            until = int(np.searchsorted(places, first))
            yield until - before, path
            before = until


def followed(
    found: Found, ancestors: Sequence[Ancestor], records: int, number: int | None = None
) -> Iterator[SourceRun]:
    """Yields the files of successive records, through the datasets that had them.

    Args:
        found: Where the first of them was found.
        ancestors: The datasets that they were read from, the nearest first.
        records: How many there are.
        number: The number of the first in the file, if that is known.
    """
    if ancestors and number is None:
        number = record_number(found)
        last = record_number(found._replace(number=found.number + records - 1))
        if number is not None and last is not None and last - number != records - 1:
            half = records // 2  # Some in between were set aside.
            yield from followed(found, ancestors, half)
            later = found._replace(number=found.number + half)
            yield from followed(later, ancestors, records - half)
            return
    if not ancestors or number is None:
        yield records, found.file.path
        return
    nearest, *others = ancestors
    shard = found.span.file_index
    before = int(nearest.columns["records"][:shard].sum())
    while records:
        taken = nearest.taken(shard, number)
        if taken is None:
            yield records, found.file.path
            return
        span = taken.span
        passed = before + number - taken.first_record
        count = min(records, span.records - passed)
        behind = passed + span.skipped_records
        origin = Found(taken.file, span, behind, None, taken.regions)
        yield from followed(origin, others, count)
        number, records = number + count, records - count
