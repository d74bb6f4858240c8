"""The description of a dataset on the page: tables, facts and charts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import GristmillError, some_of
from gristmill.dataset.metadata.sources import read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.loader.provenance.stored_sources import PackedShard
from gristmill.pipelines.text.printer import fact_pairs, plural, size_text
from gristmill.pipelines.text.split_editions import made_by
from gristmill.pipelines.text.split_facts import feature_text, split_facts

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


_LISTED = 100
"""Shards, files or features of one table."""

_FEW_SHARDS = 16
"""Up to so many, a table says more than a chart."""

_IN_TILES = ("records", "size", "digest")

_STORED = (["Records", 1], ["Shards", 1], ["Not compressed", 1], ["Stored", 1])
Section = dict[str, Any]
"""`title`, and `facts`, `chart`, or a table: `columns` as [title, whether numbers],
`rows`, `more`."""


def described(dataset: Dataset, name: str = "") -> dict[str, Any]:
    """Returns the description of a dataset, as JSON values.

    It reads the tables and the lists of the dataset, and a sample of its records.
    """
    parts = [(part, part.committed) for part in dataset.parts]
    found = [(part, split) for part, split in parts if split is not None]
    return {
        "name": name,
        "title": title_of(dataset),
        "split": dataset.split,
        "path": some_of(dict.fromkeys(part.path for part in dataset.parts)),
        "records": len(dataset),
        "thing": "row" if dataset.is_packed else "record",
        "tiles": [*_tiles(dataset)],
        "sections": [
            *_splits(dataset),
            *_shards(dataset),
            *_lengths(dataset),
            *_sources(found),
            *_contents(dataset, found),
        ],
    }


def title_of(dataset: Dataset) -> str:
    """Returns the name of a dataset, or of files without a description."""
    return dataset.manifest.name if dataset.manifest else "files"


def _tiles(dataset: Dataset) -> Iterator[tuple[str, str, str]]:
    """Yields the first numbers that one asks for, each with a note."""
    stored = shards_of(dataset).file_bytes
    known, mean = bool((stored >= 0).all()), dataset.mean_record_bytes
    thing = "Packed rows" if dataset.is_packed else "Records"
    each = "" if mean is None else f"{size_text(mean)} each, on average"
    yield thing, f"{len(dataset):,}", each
    if (counts := dataset.packed_counts()) is not None:
        yield "Documents", f"{counts.documents:,}", ""
        places = counts.tokens + counts.padding_tokens
        padding = counts.padding_tokens / max(places, 1)
        yield "Tokens", f"{counts.tokens:,}", f"and {padding:.2%} padding"
    if known:
        yield "Stored", size_text(int(stored.sum())), ""
    each = f"{size_text(stored.mean())} each, on average" * bool(
        known and len(stored) > 1
    )
    yield "Shards", f"{dataset.num_shards:,}", each


def _splits(dataset: Dataset) -> Iterator[Section]:
    """Yields tables of splits and of editions, where there are several."""
    splits = dataset.manifest.splits if dataset.manifest else {}
    if len(splits) > 1:
        rows = [[name, *_stored(split)] for name, split in sorted(splits.items())]
        yield _table("Splits", (["Split", 0], *_STORED), rows)
    split = dataset.committed
    if split is not None and split.last_edition > 1:
        kept = [number for number in split.known if number not in split.numbers]
        rows = [
            [
                number,
                *_stored(split.known[number]),
                made_by(split, number) + ", replaced since" * (number in kept),
            ]
            for number in (*split.numbers, *sorted(kept))
        ]
        columns = (["Edition", 1], *_STORED, ["Made by", 0])
        yield _table("Editions", columns, rows)


def _stored(split: Split) -> list[Any]:
    sizes = map(size_text, (split.raw_bytes, split.file_bytes))
    return [split.records, split.shards, *sizes]


def _shards(dataset: Dataset) -> Iterator[Section]:
    shards = shards_of(dataset)
    count = dataset.num_shards
    if count < 2:
        return
    if count > _FEW_SHARDS:
        if (shards.file_bytes >= 0).all():
            title, values, text = "Stored size", shards.file_bytes, size_text
        else:
            values = np.diff(shards.ends, prepend=0)
            title, text = "Records", "{:,} records".format
        chart = shards_chart(values, f"{title} of each shard", text)
        yield {"title": "Shards", "chart": chart}
    rows = []
    for number in range(min(count, _LISTED)):
        info = dataset.shard(number)
        size = "" if info.file_bytes is None else size_text(info.file_bytes)
        rows.append([number, info.first_record, info.records, size, info.path])
    columns = (["Shard", 1], ["First record", 1], ["Records", 1], ["Stored", 1])
    title, folded = ("", "Show the shards") if count > _FEW_SHARDS else ("Shards", "")
    yield _table(title, (*columns, ["File", 0]), rows, of=count, folded=folded)


def _lengths(dataset: Dataset) -> Iterator[Section]:
    try:
        yield from ({"title": "", "chart": chart} for chart in length_charts(dataset))
    except (GristmillError, OSError) as e:
        # The rest of the page is there to say more.
        yield {"title": "Sizes", "facts": [["not known", str(e)]]}


def _sources(found: Sequence[tuple[Dataset, Split]]) -> Iterator[Section]:
    """Yields the files that the records of each edition come from."""
    rows: list[list[str]] = []
    total = 0
    for part, split in found:
        for edition in split.parts:
            files = read_sources(part.path, edition) or ()
            total += len(files)
            rows += [
                [file.path, file.format, _size(file.size_bytes)]
                for file in itertools.islice(files, _LISTED - len(rows))
            ]
    if rows:
        names = (["File", 0], ["Format", 0], ["Size", 1])
        yield _table("Source files", names, rows, of=total)


def _size(size_bytes: int) -> str:
    return size_text(size_bytes) if size_bytes else ""


def _contents(
    dataset: Dataset, found: Sequence[tuple[Dataset, Split]]
) -> Iterator[Section]:
    facts = [
        [head, line]
        for part, split in found
        for edition in split.parts
        for head, lines in fact_pairs(split_facts(edition, part.path))
        for line in lines
        if head not in _IN_TILES
    ]
    if (digest := dataset.records_digest) is not None:
        facts.append(["digest", digest])
    if facts:
        yield {"title": "Facts", "facts": facts}
    if features := dataset.features:
        some = itertools.islice(features.items(), _LISTED)
        rows = [[name, feature_text(spec)] for name, spec in some]
        columns = (["Name", 0], ["Type", 0])
        yield _table("Features", columns, rows, of=len(features))


def _table(
    title: str,
    columns: Sequence[Any],
    rows: Sequence[Any],
    *,
    of: int = 0,
    folded: str = "",
) -> Section:
    more = max(0, of - len(rows))
    found = {"title": title, "columns": columns, "rows": rows, "folded": folded}
    return found | {"more": f"And {more:,} more." if more else ""}
