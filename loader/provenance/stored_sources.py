"""The stored sources of records, and the documents in packed rows.

In object storage, a row takes four requests, whatever the size of the dataset: for the
segment index, the version of its shard, its index, and the row.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import CorruptInputError, InvalidDatasetError
from gristmill.dataset.base.places import Places
from gristmill.dataset.formats.tar_samples import sample_at
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import decode_places
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import SourceFile, SourceFiles, read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.dataset.packed.row_format import RowFormat, decode_rows, read_heads
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Stored
from gristmill.loader.data.part import Part

# A segment index takes some 5 bytes a piece on storage, and some 25 in memory.
_KEPT_SHARDS = 4
_CURE = "restore it from a copy, or pack the dataset again with --overwrite"


TEMPLATE = "template"
"""The role of tokens of a conversation that are in no message."""


class RowPieces(NamedTuple):
    """The pieces of a row, in its order. Arrays are int64 [pieces].

    Attributes:
        documents: The document of each: its number in the shard.
        firsts: Its first token in that document.
        begins: Its first token in the row.
        ends: The token of the row after its last.
        spans: The spans of messages, with a piece for each document; None if the rows
            hold no conversations.
    """

    documents: IntArray
    firsts: IntArray
    begins: IntArray
    ends: IntArray
    spans: MessageSpans | None = None

    def said(self, piece: int, token: int) -> dict[str, Any]:
        """Returns role and message of a token of the row, as fields of `Piece`."""
        if self.spans is None:
            return {}
        at = token - int(self.begins[piece])
        for span in self.spans.of_document(piece):
            if span.pop("begin") <= at < span.pop("end"):
                weight = span.get("weight", 1.0) if span["trained"] else None
                return span | {"weight": weight}
        return {"role": TEMPLATE, "trained": False}


def packed_of(part: Part, shard: int) -> PackedSplit | None:
    """Returns the description of a shard's packed rows, None for other shards.

    Raises InvalidDatasetError if it makes no sense.
    """
    if (split := part.committed) is None:
        return None
    fields = split.part(split.edition_of(shard)).packed
    return None if fields is None else PackedSplit.parse(fields, where=part.path)


class PackedShard:
    """A shard of packed rows.

    Args:
        stored: The parts and shards of the dataset.
        number: The shard's number there.

    Attributes:
        segments: The documents of its rows, and where these begin.

    Raises:
        InvalidDatasetError: The segment index is damaged, or is not that of the shard.
        StorageError: It cannot be read.
    """

    def __init__(self, stored: Stored, number: int):
        part, own = stored.part_of(number)
        packed, table = packed_of(part, own), part.table
        if packed is None or table is None:
            raise ValueError(f"shard {number} of {part!r} has no packed rows")
        self._reader, self._first = stored.reader, stored.shards.first_record(number)
        self._format = RowFormat(packed.length, packed.id_bytes, packed.rows)
        self._place = layout.join(part.path, layout.segments_path(table.paths[own]))
        crc32c = int(table.columns["segments_crc32c"][own])
        self.segments = segments_at(self._place, crc32c)

    def pieces(self, row: int) -> RowPieces:
        """Returns the pieces of a row, which it reads: only there are their lengths."""
        documents, firsts = self.segments.row(row)
        batch = self._read(np.array([row]), whole=True)
        ends = np.cumsum(batch.lengths, dtype=np.int64)
        return RowPieces(
            documents.astype(np.int64),
            firsts.astype(np.int64),
            ends - batch.lengths,
            ends,
            batch.spans,
        )

    def lengths(self, rows: IntArray) -> npt.NDArray[np.uint32]:
        """Returns the tokens of each piece of some rows, which it reads.

        Args:
            rows: int64 [rows], ascending.
        """
        lengths: npt.NDArray[np.uint32] = self._read(rows).lengths
        return lengths

    def document(self, number: int) -> list[tuple[int, int, int, int]]:
        """Returns row, begin, end and first token of each piece of a document.

        A piece that begins its row, and is not the last of the document, ends where the
        next one begins: that row is not read.
        """
        found = []
        pieces = self.segments.pieces_of(number)
        rows, numbers, firsts = map(np.ndarray.tolist, pieces)
        for row, at, first, later in zip(
            rows, numbers, firsts, [*firsts, None][1:], strict=False
        ):
            if at == 0 and later is not None:
                found.append((row, 0, later - first, first))
            else:
                read = self.pieces(row)
                found.append((row, int(read.begins[at]), int(read.ends[at]), first))
        return found

    def _read(self, rows: IntArray, *, whole: bool = False) -> Any:
        """Returns rows as a `RowBatch`, or the heads of them."""
        records = self._reader.read(self._first + rows)
        whole = whole or self._format.rows != "packed"
        batch = (decode_rows if whole else read_heads)(self._format, records)
        expected = np.diff(self.segments.row_ends, prepend=0)[rows]
        found = np.diff(batch.row_ends, prepend=0)
        if not np.array_equal(found, expected):
            at = int(np.argmax(found != expected))
            raise _other(
                f"{self._place}, row {int(rows[at]):,}",
                expected=f"{int(found[at]):,} pieces",
                got=f"{int(expected[at]):,}",
            )
        return batch


@functools.lru_cache(maxsize=_KEPT_SHARDS)
def segments_at(path: str, crc32c: int) -> SegmentIndex:
    """Returns the segment index at a path, with this checksum.

    Raises:
        InvalidDatasetError: There is none, or it has another checksum.
    """
    found = storage_for(path).load(path)
    if found is None:
        raise InvalidDatasetError(
            "segment index of a packed shard does not exist", where=path, cure=_CURE
        )
    if (got := google_crc32c.value(found.data)) != crc32c:
        raise _other(path, expected=f"crc32c {crc32c:#010x}", got=f"{got:#010x}")
    return SegmentIndex.decode(found.data, where=path)


def _other(where: str, *, expected: str, got: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        "segment index is damaged, or not that of its shard",
        where=where,
        expected=expected,
        got=got,
        cure=_CURE,
    )


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


def find_places(
    part: Part,
    split: Split,
    shards: range,
    wanted: Sequence[tuple[str, int]],
    near: list[int] | None = None,
) -> Iterator[tuple[int, int, int]]:
    """Yields the records and documents that were made from places of source files.

    Args:
        part: Where to look.
        split: One edition of it.
        shards: The shards of the edition, among those of the part.
        wanted: Paths of files, as they were given, and places in them.
        near: Receives the nearest places of the same files, for messages.

    Yields:
        The number of a wanted place, that of the shard in the part, and that of the
        record or document in the shard.

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
                yield number, shard, row
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
