"""Packed rows as `gristmill head` shows them: pieces of documents, as ids."""

from __future__ import annotations

import json

import numpy as np

from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.pipelines.text.formatting import plural
from gristmill.pipelines.text.records import record_json, record_text

_IDS_SHOWN = 8


def packed_format(split: Split | None) -> RowFormat | None:
    """Returns how the packed rows of a split are stored, None of other records.

    Rows that are `tf.train.Example` are shown as such.
    """
    packed = None if split is None else split.parts[0].packed
    if packed is None or packed["rows"] != "packed":
        return None
    return RowFormat(packed["length"], packed["id_bytes"])


def shown_text(
    number: int, record: bytes, row_format: RowFormat | None, *, full: bool = False
) -> str:
    """Returns a record as text, also a packed row; with `full`, all of it."""
    if row_format is None:
        return record_text(number, record, full=full)
    return _row_text(number, record, row_format, full)


def shown_json(number: int, record: bytes, row_format: RowFormat | None) -> str:
    """Returns a record as one line of JSON, also a packed row."""
    if row_format is None:
        return record_json(number, record)
    return _row_json(number, record, row_format)


def _row_text(number: int, record: bytes, row_format: RowFormat, full: bool) -> str:
    """Returns a packed row as text: the first ids of each piece, or all."""
    pieces = _pieces(record, row_format)
    tokens = plural(sum(len(ids) for _, ids, gone in pieces if not gone), "token")
    head = f"record {number}: {len(record):,} bytes, {tokens} in "
    lines = [head + plural(len(pieces), "piece")]
    for first, ids, removed in pieces:
        if removed:
            places = plural(len(ids), "place")
            lines.append(f"  a document that was removed: {places} of padding")
            continue
        some = ids if full else ids[:_IDS_SHOWN]
        shown = " ".join(map(str, some))
        if len(ids) > len(some):
            shown += f" ... ({len(ids):,} tokens)"
        begin = f"from token {first:,} of its document: " if first else ""
        lines.append(f"  {begin}{shown}")
    return "\n".join(lines)


def _row_json(number: int, record: bytes, row_format: RowFormat) -> str:
    """Returns a packed row as one line of JSON, with all ids of each piece."""
    pieces = [
        {"first": first, "ids": ids} | ({"removed": True} if removed else {})
        for first, ids, removed in _pieces(record, row_format)
    ]
    return json.dumps({"record": number, "bytes": len(record), "pieces": pieces})


def _pieces(record: bytes, row_format: RowFormat) -> list[tuple[int, list[int], bool]]:
    """Returns the position in its document, and the ids, of each piece of a row.

    And whether the document was removed: the ids are 0 then.
    """
    row = decode_rows(row_format, [record])
    ends = np.cumsum(row.lengths)
    parts = np.split(row.tokens, ends[:-1])
    firsts, removed = row.positions.tolist(), row.removed.tolist()
    return [
        (first, ids.tolist(), gone)
        for first, ids, gone in zip(firsts, parts, removed, strict=True)
    ]
