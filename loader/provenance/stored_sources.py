"""The stored sources of records, and the records that were made from a source."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import CorruptInputError
from gristmill.dataset.base.places import Places
from gristmill.dataset.formats.tar_samples import sample_at
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import decode_places
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import SourceFile, SourceFiles, read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.part import Part
from gristmill.loader.provenance.packed_shard import segments_at

_KEPT_SHARDS = 4
_NOT_STORED = (
    "the sources of these records were not stored: only datasets that gristmill made "
    "from files have them"
)
_WRITTEN = "written by a Python program, with gristmill.dataset.Writer"
_NO_LIST = "the dataset's list of source files is missing or damaged"


def shard_places(dataset: str, table: ShardTable, shard: int) -> Places | None:
    """Returns the sources of a shard's records, or of the documents of packed rows.

    Args:
        dataset: The dataset's directory.
        table: The table of its shards, of one edition or of several.
        shard: The shard's number there.

    Returns:
        None if they were not stored.

    Raises:
        InvalidDatasetError: They are damaged.
        StorageError: They cannot be read.
    """
    path = table.paths[shard]
    if "segments_crc32c" in table.columns:
        crc32c = int(table.columns["segments_crc32c"][shard])
        return segments_at(
            layout.join(dataset, layout.segments_path(path)), crc32c
        ).sources
    begin, records = int(table.index_bytes[shard]), int(table.records[shard])
    if not begin:
        return None
    index = layout.join(dataset, layout.index_path(path))
    return _stored_places(index, begin, records, int(table.file_crc32cs[shard]))


@functools.lru_cache(maxsize=_KEPT_SHARDS)
def _stored_places(path: str, begin: int, records: int, file_crc32c: int) -> Places:
    del file_crc32c  # In the key of the cache: the shard may have been replaced.
    return decode_places(storage_for(path).read(path, begin), records, path=path)


class StoredSources(NamedTuple):
    """The sources of a shard's records, or of the documents of packed rows.

    Attributes:
        files: The files, by number.
        places: The source of each record.
    """

    files: SourceFiles
    places: Places

    def fields(self, record: int) -> dict[str, Any]:
        """Returns the known source of a record or document: fields of `SourcePlace`."""
        files, places = self.places.files, self.places.places
        file: SourceFile = self.files[int(files[record])]
        place = int(places[record])
        numbered = file.format in ("arrayrecord", "parquet")
        fields: dict[str, Any] = {
            "source_path": file.path,
            "source_format": file.format,
            "source_compression": file.compression,
            "source_record" if numbered else "source_offset_bytes": place,
        }
        if file.format == "webdataset":
            try:
                key = sample_at(file.path, place, file.compression)
            except (OSError, CorruptInputError):
                key = None
            if key is None:
                note = "the tar is not there, or is not as it was"
                fields["source_note"] = note
            else:
                fields["source_sample"] = key.decode("utf-8", "backslashreplace")
        made = np.flatnonzero((files == files[record]) & (places == place))
        if len(made) > 1:
            which = int(np.searchsorted(made, record)) + 1
            fields["source_note"] = f"{which} of {len(made)} that were made of it"
        return fields


def stored_sources(part: Part, shard: int) -> StoredSources | str:
    """Returns the sources of a shard of a part, or a note why they are not known."""
    if (split := part.committed) is None or part.table is None:
        return _NOT_STORED
    split = split.part(split.edition_of(shard))
    places = shard_places(part.path, part.table, shard)
    if places is None:
        return _NOT_STORED if split.writer_parts is None else _WRITTEN
    files = read_sources(part.path, split)
    if files is None or int(places.files.max(initial=-1)) >= len(files):
        return _NO_LIST
    return StoredSources(files, places)


class Match(NamedTuple):
    """A record, or a document of packed rows, that was made from a source place.

    Attributes:
        wanted: The number of the place.
        shard: The number of the shard in the part.
        record: The number of the record or document in the shard.
    """

    wanted: int
    shard: int
    record: int


def find_places(
    part: Part,
    split: Split,
    shards: range,
    wanted: Sequence[tuple[str, int]],
    near: list[int] | None = None,
) -> Iterator[Match]:
    """Yields the records and documents that were made from places of source files.

    Args:
        part: Where to look.
        split: One edition of it.
        shards: The shards of the edition, among those of the part.
        wanted: Paths of files, as they were given, and places in them.
        near: Receives the nearest places of the same files, for messages.

    Raises:
        InvalidDatasetError: Stored places are damaged.
        StorageError: They cannot be read.
    """
    files, table = read_sources(part.path, split), part.table
    if files is None or table is None:
        return
    numbers = files.numbers_of(path for path, _ in wanted)
    by_place: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (path, place) in enumerate(wanted):
        for file in numbers[path]:
            by_place[file, place].append(number)
    if not by_place:
        return
    asked = np.array(sorted(by_place), np.int64)
    for shard in _shards_with(split, table, shards, asked):
        found = shard_places(part.path, table, shard)
        if found is None:
            continue
        rows = np.flatnonzero(np.isin(found.places, asked[:, 1]))
        keys = zip(found.files[rows].tolist(), found.places[rows].tolist(), strict=True)
        for row, key in zip(rows.tolist(), keys, strict=True):
            for number in by_place.get(key, ()):
                yield Match(number, shard, row)
        if near is not None:
            near += _near(found, asked)


def _near(found: Places, asked: IntArray) -> Iterator[int]:
    """Yields the places of a shard that are nearest to those asked for."""
    for file, place in asked.tolist():
        own = np.sort(found.places[found.files == file])
        at = int(np.searchsorted(own, place))
        yield from own[max(at - 1, 0) : at + 1].tolist()


def _shards_with(
    split: Split, table: ShardTable, shards: range, asked: IntArray
) -> Iterable[int]:
    """Returns the shards that can have places of files: int64 [places, 2]."""
    # There are no spans of source files to go by.
    if "shards_digest" in split.source or split.writer_parts is not None:
        return shards
    columns, spans = table.columns, []
    for file in np.unique(asked[:, 0]).tolist():
        places = asked[asked[:, 0] == file, 1]
        own = np.flatnonzero(columns["span_file"] == file)
        begins, ends = (
            np.searchsorted(places, columns[f"span_{edge}_bytes"][own])
            for edge in ("start", "stop")
        )
        spans.append(own[begins < ends])
    rows = np.concatenate(spans)
    found = np.searchsorted(columns["span_ends"], rows, side="right")
    return [shard for shard in np.unique(found).tolist() if shard in shards]
