"""The sources of a dataset: input files, datasets before it, and losses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import GristmillError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.lineage import Ancestor, read_lineage
from gristmill.dataset.metadata.provenance import (
    SourceFile,
    read_source_files,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset, table_of
from gristmill.pipelines.text.split_description import source_text
from gristmill.pipelines.view.answers.opened_datasets import Opened

_FILES = 200
_REGIONS = 200
_UNREADABLE = 20
"""Lists of regions that cannot be read, after which no others are tried."""
_REGION_FIELDS = (
    *("file", "begin_bytes", "end_bytes", "begin_row", "end_row", "compressed"),
    *("reason", "detail"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EditionSources:
    """What an edition was made of.

    Attributes:
        number: The edition, counted from 1.
        path: The dataset that it is of.
        split: The split of that.
        records: How many records it has.
        shards: How many shards.
        source: What it was made of, in words.
        num_files: How many files that was.
        files: Some of them.
        parents: The datasets that these files belong to, the nearest first.
    """

    number: int
    path: str
    split: str | None
    records: int
    shards: int
    source: str
    num_files: int
    files: list[dict[str, Any]]
    parents: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quarantined:
    """Damaged regions of the inputs that were set aside.

    Attributes:
        regions: How many there are.
        bytes: Their size.
        shown: Some of them, each with the shard that it is missing in.
        note: Which lists of regions cannot be read, None if all can.
    """

    regions: int
    bytes: int
    shown: list[dict[str, Any]]
    note: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lineage:
    """What a dataset was made of.

    Attributes:
        editions: For each edition; none where it is not known.
        quarantine: What was set aside, None if nothing was.
    """

    editions: list[EditionSources]
    quarantine: Quarantined | None


def lineage(opened: Opened, *, of: str = "", split: str | None = None) -> Lineage:
    """Returns the sources of a dataset; reads its lists of inputs."""
    dataset = opened.dataset(of, split)
    return Lineage(
        editions=[found for part in dataset.parts for found in _editions(part)],
        quarantine=_quarantine(dataset),
    )


def _editions(part: Dataset) -> Iterator[EditionSources]:
    committed = part.committed
    first = 0
    for edition in committed.parts if committed else ():
        shards = slice(first, first + edition.shards)
        first = shards.stop
        files = read_source_files(part.path, edition)
        records = _records_of(part, shards, len(files))
        yield EditionSources(
            number=edition.edition,
            path=part.path,
            split=part.split,
            records=edition.records,
            shards=edition.shards,
            source=source_text(edition) or "not known",
            num_files=len(files),
            files=[
                _file(file, None if records is None else int(records[at]))
                for at, file in enumerate(files[:_FILES])
            ],
            parents=[_parent(one) for one in read_lineage(part.path, edition)],
        )


def _records_of(part: Dataset, shards: slice, files: int) -> IntArray | None:
    """Returns the number of records of each file in some shards."""
    table = table_of(part)
    if table is None or "span_ends" not in table.columns or not files:
        return None
    ends = np.append(0, table.columns["span_ends"])
    rows = slice(int(ends[shards.start]), int(ends[shards.stop]))
    of_file = table.columns["span_file"][rows]
    counts = np.zeros(files, np.int64)
    known = (of_file >= 0) & (of_file < files)
    np.add.at(counts, of_file[known], table.columns["span_records"][rows][known])
    return counts


def _file(file: SourceFile, records: int | None) -> dict[str, Any]:
    return {
        "path": file.path,
        "format": file.format,
        "compression": file.compression,
        "bytes": file.size_bytes or None,
        "records": records,
    }


def _parent(ancestor: Ancestor) -> dict[str, Any]:
    return {
        "dataset": ancestor.dataset,
        "split": ancestor.split,
        "function": ancestor.function,
        "records": ancestor.records,
        "num_files": len(ancestor.files),
        "files": [file.path for file in ancestor.files[:_FILES]],
    }


def _quarantine(dataset: Dataset) -> Quarantined | None:
    splits = [part.committed for part in dataset.parts if part.committed is not None]
    regions = sum(split.quarantined_regions for split in splits)
    if not regions:
        return None
    shown: list[dict[str, Any]] = []
    unreadable: list[str] = []
    for part, shard, name in _damaged_shards(dataset):
        if len(shown) >= _REGIONS or len(unreadable) >= _UNREADABLE:
            break
        path = layout.join(part.path, layout.quarantine_paths(name)[1])
        try:
            found = _regions(storage_for(path).read(path))
        except (GristmillError, OSError, ValueError, TypeError, AttributeError):
            unreadable.append(path)
            continue
        shown += [{"shard": shard} | region for region in found]
    return Quarantined(
        regions=regions,
        bytes=sum(split.quarantined_bytes for split in splits),
        shown=shown[:_REGIONS],
        note=f"cannot be read: {some_of(unreadable)}" if unreadable else None,
    )


def _damaged_shards(dataset: Dataset) -> Iterator[tuple[Dataset, int, str]]:
    """Yields shards of whose inputs something was set aside, by number and name."""
    before = 0
    for part in dataset.parts:
        table = table_of(part)
        if table is not None:
            for shard in np.flatnonzero(table.columns["quarantined_regions"]).tolist():
                yield part, before + shard, table.paths[shard]
        before += part.num_shards


def _regions(data: bytes) -> Sequence[dict[str, Any]]:
    """Returns the regions of a list."""
    text = data.decode("utf-8", "surrogateescape").removesuffix("\n")
    # Not at U+2028 and the like, which texts in it can have.
    lines = map(json.loads, text.split("\n"))
    return [{name: line.get(name) for name in _REGION_FIELDS} for line in lines]
