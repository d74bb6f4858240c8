"""Histograms of records and documents, of all of few and of a sample of many."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import numpy as np

from gristmill.dataset.packed.row_format import decode_rows
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset, shards_of, table_of
from gristmill.loader.provenance.packed_shard import PackedShard
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.answers.record import row_format_of

_BINS = 30
_ALL_BYTES = 16 << 20
_PLACES, _PLACE_RECORDS, _SAMPLE_BYTES = 64, 64, 8 << 20
_GROUP = 8  # Places that are read at once.
_FEW = 8  # Records that are read where their mean size is not known.
_SAMPLED_SHARDS = 4
_SEGMENTS_BYTES = 2 << 20
"""Of segment indexes that are read, beside the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of what is read.

    Attributes:
        all_records: Records of a dataset of which all are read.
        all_documents: The same of documents.
        sampled_documents: Documents to read of a larger dataset.
        seconds: Time after which no further records are read.
    """

    all_records: int = 4096
    all_documents: int = 2048
    sampled_documents: int = 512
    seconds: float = 0.1


_LIMITS = Limits()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histogram:
    """How many values are in each of some ranges.

    Attributes:
        edges: Where the ranges begin, and where the last ends, which it does not have.
        counts: How many values are in each.
        sampled: How many values were looked at.
        of: How many there are.
        exact: Whether these are all.
        mean: Their mean.
        min: The smallest.
        max: The largest.
    """

    edges: list[int]
    counts: list[int]
    sampled: int
    of: int
    exact: bool
    mean: float
    min: int
    max: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of records and documents.

    Attributes:
        record_bytes: Bytes of records; None of an empty dataset.
        document_tokens: Tokens of the documents of packed rows; None of other records.
    """

    record_bytes: Histogram | None
    document_tokens: Histogram | None


def sizes(
    opened: Opened, *, of: str = "", split: str | None = None, limits: Limits = _LIMITS
) -> Sizes:
    """Returns the histograms of a dataset; reads all of a small one, or a sample."""
    dataset = opened.dataset(of, split)
    lengths = [len(data) for data in _sampled_records(dataset, limits)]
    counts = dataset.packed_counts()
    documents = None
    if counts is not None and counts.documents:
        documents = histogram(_document_lengths(dataset, limits), of=counts.documents)
    return Sizes(
        record_bytes=histogram(np.array(lengths, np.int64), of=len(dataset)),
        document_tokens=documents,
    )


def histogram(values: IntArray, *, of: int) -> Histogram | None:
    """Returns the histogram of some values, in ranges that grow; None of no value.

    Args:
        values: int64 [n], at least 0.
        of: How many there are.
    """
    if not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    grown = np.geomspace(max(low, 1), high + 1, _BINS + 1)
    edges = np.unique(np.concatenate([[low], np.rint(grown), [high + 1]]))
    places = np.searchsorted(np.sort(values), edges)
    return Histogram(
        edges=edges.astype(np.int64).tolist(),
        counts=np.diff(places).tolist(),
        sampled=len(values),
        of=of,
        exact=len(values) == of,
        mean=float(values.mean()),
        min=low,
        max=high,
    )


def _sampled_records(dataset: Dataset, limits: Limits) -> Iterator[bytes]:
    """Yields all records of a small dataset, or some from places all over it."""
    count = len(dataset)
    mean = dataset.mean_record_bytes
    if mean is None:
        few = np.unique(np.linspace(0, max(count - 1, 0), _FEW).astype(np.int64))
        some = dataset.read(few[few < count])
        mean = sum(map(len, some)) / max(len(some), 1)
    if count <= limits.all_records and count * mean <= _ALL_BYTES:
        yield from dataset.read(np.arange(count))
        return
    run = int(np.clip(_SAMPLE_BYTES / _PLACES / max(mean, 1), 1, _PLACE_RECORDS))
    # The same records each time.
    places = min(count, _PLACES)
    starts = np.random.default_rng(0).choice(count, places, replace=False)
    began = time.monotonic()
    for first in range(0, places, _GROUP):
        group = starts[first : first + _GROUP, np.newaxis] + np.arange(run)
        yield from dataset.read(group[group < count])
        if time.monotonic() - began > limits.seconds:
            return


def _document_lengths(dataset: Dataset, limits: Limits) -> IntArray:
    """Returns the tokens of documents of packed rows: of all, or of a sample."""
    found = []
    shards = _shards_to_read(dataset)
    counts = dataset.packed_counts()
    few = counts is not None and counts.documents <= limits.all_documents
    few &= len(shards) == dataset.num_shards
    chance = np.random.default_rng(0)
    for shard in shards:
        part, number = dataset.part_of(shard)
        opened = PackedShard(part, number)
        documents = opened.segments.documents
        chosen = np.arange(documents)
        if not few:
            some = min(documents, limits.sampled_documents // len(shards))
            chosen = np.sort(chance.choice(documents, some, replace=False))
        found.append(_lengths_of(part, opened, chosen))
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _shards_to_read(dataset: Dataset) -> list[int]:
    """Returns shards of packed rows whose segment indexes are read in a moment."""
    tables = [table_of(part) for part in dataset.parts]
    sizes = np.concatenate(
        [table.columns["segments_bytes"] for table in tables if table is not None]
    )
    with_rows = np.flatnonzero(np.diff(shards_of(dataset).ends, prepend=0))
    if len(with_rows) > _SAMPLED_SHARDS or sizes[with_rows].sum() > _SEGMENTS_BYTES:
        some = min(len(with_rows), _SAMPLED_SHARDS)
        with_rows = np.random.default_rng(0).choice(with_rows, some, replace=False)
    taken = np.cumsum(sizes[with_rows]) <= _SEGMENTS_BYTES
    taken[:1] = True
    return [int(shard) for shard in np.sort(with_rows[taken])]


def _lengths_of(part: Dataset, shard: PackedShard, chosen: IntArray) -> IntArray:
    """Returns the tokens of some documents of a shard, by their last pieces."""
    segments = shard.segments
    places = np.flatnonzero(np.isin(segments.piece_documents, chosen))
    owners = segments.piece_documents[places]
    firsts = segments.piece_firsts[places].astype(np.int64)
    order = np.lexsort((firsts, owners))
    last = order[np.append(owners[order][1:] != owners[order][:-1], True)]
    places, firsts = places[last], firsts[last]
    rows = np.searchsorted(segments.row_ends, places, side="right")
    row_format = row_format_of(part, shard.info)
    if row_format is None or not len(rows):
        return np.empty(0, np.int64)
    read, at = np.unique(rows, return_inverse=True)
    batch = decode_rows(row_format, part.read(shard.info.first_record + read))
    begins = np.append(0, batch.row_ends)[at]
    row_begins = np.append(0, segments.row_ends)[rows]
    found: IntArray = firsts + batch.lengths[begins + places - row_begins]
    return found
