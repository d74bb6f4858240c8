"""One shard of packed rows, opened alone: of which documents its rows are.

In object storage this takes four requests, whatever the size of the dataset: for the
segment index, for the shard and its index, and for the row.
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
from gristmill.loader.data.dataset import (
    Dataset,
    reader_of,
    table_of,
)
from gristmill.loader.data.shard_info import ShardInfo

# A segment index takes some 5 bytes a piece on storage, and some 25 in memory.
_KEPT_SHARDS = 4
_CURE = "restore it from a copy, or pack the dataset again with --overwrite"


TEMPLATE = "template"
"""Whose the tokens of conversations are that are in no message."""


class RowPieces(NamedTuple):
    """The pieces of a row, in its order. Arrays are int64 [pieces].

    Attributes:
        documents: The document of each: its number in the shard.
        firsts: Its first token in that document.
        begins: Its first token in the row.
        ends: The token of the row after its last.
        spans: The spans of messages, with a piece for each document; None if the rows
            are of no conversations.
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


def packed_of(dataset: Dataset, info: ShardInfo) -> PackedSplit | None:
    """Returns the description of a shard's packed rows, None for other shards.

    Args:
        dataset: One that is not joined of others.
        info: The shard.

    Raises:
        InvalidDatasetError: It makes no sense.
    """
    if dataset.committed is None or info.edition is None:
        return None
    fields = dataset.committed.part(info.edition).packed
    return None if fields is None else PackedSplit.parse(fields, where=dataset.path)


class PackedShard:
    """A shard of packed rows.

    Args:
        dataset: One that is not joined of others.
        number: The shard's number in it.

    Attributes:
        number: Its number in the dataset.
        info: The shard.
        segments: The documents of its rows, and where these begin.

    Raises:
        InvalidDatasetError: The segment index is damaged, or is not that of the shard.
        StorageError: It cannot be read.
    """

    def __init__(self, dataset: Dataset, number: int):
        self.info = dataset.shard(number)
        self._dataset, self.number = dataset, number
        self._first = self.info.first_record
        packed = packed_of(dataset, self.info)
        if packed is None:
            raise ValueError(f"{self.info.path} has no packed rows")
        rows = cast(RowsKind, packed.rows)
        self._format = RowFormat(packed.length, packed.id_bytes, rows)
        name = self.info.path.removeprefix(dataset.path).lstrip("/")
        self._place = layout.join(dataset.path, layout.segments_path(name))
        table = table_of(dataset)
        if table is None or "segments_crc32c" not in table.columns:
            raise ValueError(f"{self.info.path} has no segment index")
        crc32c = int(table.columns["segments_crc32c"][number])
        self.segments = segments_at(self._place, crc32c)

    def pieces(self, row: int) -> RowPieces:
        """Returns the pieces of a row, which it reads: only there are their lengths."""
        documents, firsts = self.segments.row(row)
        (record,) = reader_of(self._dataset).read(
            np.array([self._first + row], np.int64)
        )
        batch = decode_rows(self._format, [record])
        lengths = batch.lengths
        if len(lengths) != len(documents):
            raise _other(
                f"{self._place}, row {row:,}",
                expected=f"{len(lengths):,} pieces",
                got=f"{len(documents):,}",
            )
        ends = np.cumsum(lengths, dtype=np.int64)
        return RowPieces(
            documents.astype(np.int64),
            firsts.astype(np.int64),
            ends - lengths,
            ends,
            batch.spans,
        )

    def lengths(self, rows: IntArray) -> npt.NDArray[np.uint32]:
        """Returns the tokens of each piece of some rows, which it reads.

        Args:
            rows: int64 [rows], ascending.
        """
        records = reader_of(self._dataset).read(self._first + rows)
        whole = self._format.rows != "packed"
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
        return batch.lengths


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
    data = found.data
    if (got := google_crc32c.value(data)) != crc32c:
        raise _other(path, expected=f"crc32c {crc32c:#010x}", got=f"{got:#010x}")
    return SegmentIndex.decode(data, where=path)


def _other(where: str, *, expected: str, got: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        "segment index is damaged, or not that of its shard",
        where=where,
        expected=expected,
        got=got,
        cure=_CURE,
    )
