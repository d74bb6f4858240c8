"""One shard of packed rows, and the documents in its rows.

In object storage, a row takes four requests, whatever the size of the dataset: for the
segment index, the shard's version, its index, and the row.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, cast

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.message_spans import ROLES, MessageSpans
from gristmill.dataset.packed.row_format import (
    RowFormat,
    RowsKind,
    decode_rows,
    read_heads,
)
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
        at, spans = token - int(self.begins[piece]), self.spans
        own = spans.documents == piece
        found = np.flatnonzero(own & (spans.begins <= at) & (at < spans.stops))
        if not len(found):
            return {"role": TEMPLATE, "trained": False}
        span = int(found[0])
        trained = bool(spans.trained[span])
        return {
            "role": ROLES[spans.roles[span]],
            "message": int(spans.messages[span]),
            "trained": trained,
            "weight": float(spans.weights[span]) if trained else None,
        }


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
        rows = cast(RowsKind, packed.rows)
        self._format = RowFormat(packed.length, packed.id_bytes, rows)
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
