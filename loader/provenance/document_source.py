"""The record from which a packed document was made, and its place."""

from __future__ import annotations

import functools
import json
from typing import Any, cast

from gristmill.dataset.base.errors import CorruptInputError, GristmillError
from gristmill.dataset.formats.streams.inflated_stream import Compression
from gristmill.dataset.formats.tar.find_sample import find_sample
from gristmill.dataset.metadata.lineage import (
    Ancestor,
    Origins,
    origins_of,
    read_lineage,
)
from gristmill.dataset.metadata.provenance import NUMBERED
from gristmill.dataset.metadata.sources import SourceFile, read_source_files
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.data.dataset import Dataset, shards_of, table_of
from gristmill.loader.data.open_dataset import open as open_dataset
from gristmill.loader.provenance.found_record import Found, PassedShard, follow
from gristmill.loader.provenance.packed_shard import PackedShard
from gristmill.loader.provenance.source_place import place_of, recorded_source

_NO_LIST = "the dataset's list of input files is missing or damaged"


def document_source(
    dataset: Dataset, shard: PackedShard, document: int
) -> dict[str, Any]:
    """Returns the known source of a document: fields of `SourcePlace`.

    The segment index has the place of the record that each document was made of, so it
    is known after a function that dropped records or made several of one.

    Args:
        dataset: One that is not joined of others.
        shard: A shard of it.
        document: The document's number there.
    """
    split = split_of(dataset, shard)
    segments = shard.segments
    number = segments.span_of(document)
    place = int(segments.document_places[document])
    try:
        origins = shard_origins(dataset, split, range(shard.number, shard.number + 1))
        span = origins.span(number)
        file = origins.files[range(len(origins.files))[span.file_index]]
    except (IndexError, ValueError):
        return {"source_note": _NO_LIST}
    fields: dict[str, Any] = {
        "source_path": file.path,
        "source_format": file.format,
        "source_compression": file.compression,
    }
    made = segments.documents_at(number, place)
    if len(made) > 1:
        fields["source_note"] = (
            f"document {document - made.start + 1} of {len(made)} that the function "
            f"{_maker(dataset, split)} made of this record"
        )
    if file.format not in NUMBERED:
        return fields | {"source_offset_bytes": place} | _sample(file, place)
    if file.format != "arrayrecord":
        return fields | {"source_record": place}
    ancestors = origins.ancestors
    found = Found(file, span, place - (span.start_bytes or 0), None, ())
    last, more = follow(found, ancestors, records=-1, begin=0, number=place)
    fields |= more
    if not more["passed"]:
        return fields | {"source_record": place}
    behind = place_of(dataset, last)
    if {"source_record", "source_offset_bytes"}.isdisjoint(behind):
        known = _in_between(ancestors[0], file, place)
        if known is not None:
            behind = known
            passed = PassedShard(path=file.path, record=place)
            fields["passed"] = (passed, *behind.pop("passed", ()))
    return fields | behind


def shard_origins(dataset: Dataset, split: Split, shards: range) -> Origins:
    """Returns the places that the documents of shards come from.

    Args:
        dataset: One that is not joined of others.
        split: The edition that the shards are of.
        shards: Their numbers in the dataset.

    Raises:
        IndexError or ValueError: The list of input files is missing or damaged.
    """
    table = table_of(dataset)
    if table is None:
        raise ValueError(f"{dataset.path} has no table of shards")
    files = read_source_files(dataset.path, split)
    of_datasets = len(files) and files[0].format == "arrayrecord"
    ancestors = read_lineage(dataset.path, split) if of_datasets else ()
    return origins_of(table.columns, shards, files, ancestors)


def split_of(dataset: Dataset, shard: PackedShard) -> Split:
    """Returns the edition that a shard of a committed dataset is of."""
    committed = dataset.committed
    if committed is None or shard.info.edition is None:
        raise ValueError(f"{shard.info.path} is of no committed dataset")
    return committed.part(shard.info.edition)


def _maker(dataset: Dataset, split: Split) -> str | None:
    """Returns the function that changed records before they were packed."""
    ancestors = read_lineage(dataset.path, split)
    functions = (ancestor.function for ancestor in ancestors)
    return split.function or next(filter(None, functions), None)


def offset_between(ancestor: Ancestor, file: SourceFile, record: int) -> int | None:
    """Returns the offset, in its source, of a record of a dataset in between.

    Args:
        ancestor: The stored facts about that dataset.
        file: One of its shards, as it was read.
        record: The record's number there.

    Returns:
        None if the dataset is not there as it was, or does not know.
    """
    known = _in_between(ancestor, file, record) or {}
    offset: int | None = known.get("source_offset_bytes")
    return offset


def _in_between(
    ancestor: Ancestor, file: SourceFile, record: int
) -> dict[str, Any] | None:
    """Returns an intermediate dataset's facts about the source of its record."""
    try:
        digest = json.loads(json.loads(file.spec)["schema"])["shards_digest"]
    except (KeyError, TypeError, ValueError):
        return None
    dataset = opened_ancestor(ancestor.dataset, ancestor.split, str(digest))
    if dataset is None:
        return None
    name = file.path.rpartition("/")[2]
    for number, path in enumerate(shards_of(dataset).paths):
        if path.rpartition("/")[2] == name:
            return recorded_source(dataset, dataset.shard(number), record)
    return None


@functools.lru_cache(maxsize=2)
def opened_ancestor(path: str, split: str, shards_digest: str) -> Dataset | None:
    """Returns a dataset as it was with these shards, None where that is gone."""
    try:
        dataset = open_dataset(path, split=split)
    except (GristmillError, OSError):
        return None
    committed = dataset.committed
    for edition in sorted(committed.known) if committed else ():
        if committed and committed.until(edition).shards_digest == shards_digest:
            return dataset.as_of(edition)
    return None


def _sample(file: SourceFile, place: int) -> dict[str, Any]:
    """Returns the name of a sample of a tar, which it reads there."""
    if file.format != "webdataset":
        return {}
    try:
        found = find_sample(
            file.path, place, 0, compression=cast(Compression, file.compression)
        )
    except (OSError, CorruptInputError):
        found = None
    if found is None or found.offset != place:
        return {"source_note": "the tar is not there, or is not as it was"}
    return {"source_sample": found.key.decode("utf-8", "backslashreplace")}
