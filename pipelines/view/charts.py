"""Charts of the page: the shards of a dataset, and the sizes of what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.loader.provenance.stored_sources import PackedShard
from gristmill.pipelines.text.formatting import plural, size_text

Chart = dict[str, Any]
"""`title`, `summary`, `top`, the greatest value as text, `bars` as [low, high, text],
and `ticks` as [share of the width, text]."""

_BARS = 200
_BINS = 30
_PLACES, _PLACE_RECORDS, _SAMPLE_BYTES = 64, 32, 8 << 20
_SAMPLED_SHARDS, _SAMPLED_DOCUMENTS = 4, 1024


def shards_chart(values: IntArray, what: str, text: Callable[[int], str]) -> Chart:
    """Returns the chart of one number a shard; of many shards, of ranges of them.

    Args:
        values: int64 [shards], at least one.
        what: What they are.
        text: Shows one.
    """
    each = -(-len(values) // _BARS)
    firsts = np.arange(0, len(values), each)
    low = np.minimum.reduceat(values, firsts).tolist()
    high = np.maximum.reduceat(values, firsts).tolist()
    bars = []
    for first, least, most in zip(firsts.tolist(), low, high, strict=True):
        last = min(first + each, len(values)) - 1
        which = f"shard {first:,}" if each == 1 else f"shards {first:,} to {last:,}"
        sizes = text(most) if least == most else f"{text(least)} to {text(most)}"
        bars.append([0 if each == 1 else least, most, f"{which}: {sizes}"])
    return {
        "title": what,
        "summary": f"From {text(min(low))} to {text(max(high))}.",
        "top": text(max(high)),
        "bars": bars,
        "ticks": [[0, "shard 0"], [1, f"shard {len(values) - 1:,}"]],
    }


def length_charts(dataset: Dataset) -> Iterator[Chart]:
    """Yields the chart of the sizes of records, or of the lengths of documents.

    Reads all records of a small dataset, and a sample of a large one.
    """
    if not len(dataset):
        return
    counts = dataset.packed_counts()
    if counts is None:
        sizes = np.fromiter(map(len, _some_records(dataset)), np.int64)
        yield histogram(sizes, len(dataset), "record", "Sizes of records", size_text)
    elif counts.documents:
        lengths = _document_tokens(dataset)
        title = "Lengths of documents"
        yield histogram(lengths, counts.documents, "document", title, _tokens)


def _tokens(count: float) -> str:
    return plural(round(count), "token")


def histogram(
    values: IntArray, of: int, thing: str, title: str, text: Callable[[float], str]
) -> Chart:
    """Returns the chart of how many values are in each of some ranges that grow.

    Args:
        values: int64 [n], at least one, none negative.
        of: How many there are.
        thing: What has such a value.
        title: What is shown.
        text: Shows a value.
    """
    low, high = int(values.min()), int(values.max())
    grown = np.rint(np.geomspace(max(low, 1), high + 1, _BINS + 1))
    edges = np.unique([low, *grown, high + 1]).astype(np.int64)
    counts = np.diff(np.searchsorted(np.sort(values), edges)).tolist()
    shown = [text(edge) for edge in edges.tolist()]
    which = f"all {plural(of, thing)}"
    if len(values) < of:
        which = f"a sample of {len(values):,} of {plural(of, thing)}"
    return {
        "title": title,
        "summary": f"From {text(low)} to {text(high)}, {text(float(values.mean()))} on "
        f"average: {which}.",
        "top": plural(max(counts), thing),
        "bars": [
            [0, count, f"{shown[at]} to {shown[at + 1]}: {plural(count, thing)}"]
            for at, count in enumerate(counts)
        ],
        "ticks": [
            [share, shown[round(share * (len(shown) - 1))]]
            for share in (0, 0.25, 0.5, 0.75, 1)
        ],
    }


def _some_records(dataset: Dataset) -> Iterator[bytes]:
    """Yields all records of a small dataset, or some from places all over it."""
    count, mean = len(dataset), dataset.mean_record_bytes
    # Of files without a description, only the records tell their sizes.
    most = _PLACES if mean is None else max(1, int(_SAMPLE_BYTES / max(mean, 1)))
    run = min(_PLACE_RECORDS, max(1, most // _PLACES))
    if count <= min(most, _PLACES * _PLACE_RECORDS):
        starts, run = np.arange(count), 1
    else:
        places = min(most, _PLACES, count // run)
        starts = np.linspace(0, count - run, places).astype(np.int64)
    numbers = np.unique(starts[:, np.newaxis] + np.arange(run))
    for some in np.array_split(numbers, -(-len(numbers) // _PLACE_RECORDS)):
        yield from dataset.read(some)


def _document_tokens(dataset: Dataset) -> IntArray:
    """Returns the tokens of documents of packed rows: of all of few, or of some."""
    chance = np.random.default_rng(0)
    filled = np.flatnonzero(np.diff(shards_of(dataset).ends, prepend=0)).tolist()
    found = []
    for number in filled[:: -(-len(filled) // _SAMPLED_SHARDS)]:
        shard = PackedShard(*dataset.part_of(number))
        index = shard.segments
        order = np.lexsort((index.piece_firsts, index.piece_documents))
        owners = index.piece_documents[order]
        last = order[np.flatnonzero(np.diff(owners, append=owners[-1] + 1))]
        if len(last) > _SAMPLED_DOCUMENTS:
            last = chance.choice(last, _SAMPLED_DOCUMENTS, replace=False)
        rows = np.searchsorted(index.row_ends, last, side="right")
        read, at = np.unique(rows, return_inverse=True)
        ends = np.append(0, index.row_ends)
        begins = np.cumsum(ends[read + 1] - ends[read]) - ends[read + 1] + ends[read]
        lengths = shard.lengths(read)[begins[at] + last - ends[rows]]
        found.append(index.piece_firsts[last].astype(np.int64) + lengths)
    return np.concatenate(found)
