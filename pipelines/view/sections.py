"""The description of a dataset on the page: what is in it, and what it was made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import GristmillError, some_of
from gristmill.dataset.metadata.sources import read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.pipelines.text.formatting import size_text
from gristmill.pipelines.text.printer import fact_pairs
from gristmill.pipelines.text.split_editions import made_by
from gristmill.pipelines.text.split_facts import feature_text, split_facts
from gristmill.pipelines.view.charts import length_charts, shards_chart

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
