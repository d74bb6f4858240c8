"""Records as `gristmill head` and `trace --show` print them, also packed rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gristmill.dataset.base.example import Values, decode_example
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.pipelines.text.formatting import plural

if TYPE_CHECKING:
    from gristmill.transforms.sources.record_source import NumberedRecord

_TEXT_WIDTH = 72
_VALUES_SHOWN = 8
_BYTES_SHOWN = 24


class ShownRecord(NamedTuple):
    """A record, and what is known of it.

    Attributes:
        number: Its number.
        record: The record.
        row_format: How packed rows are stored; None for other records.
        source: Where it is in the input files, if that is to be shown.
    """

    number: int
    record: bytes
    row_format: RowFormat | None = None
    source: NumberedRecord | None = None

    def text(self, *, full: bool = False) -> str:
        """Returns it as text: a decoded tf.train.Example, a string, bytes or ids.

        Args:
            full: Whether to show all of it: long values are cut otherwise.
        """
        record, head = self.record, f"record {self.number}: {len(self.record):,} bytes"
        if self.row_format is not None:
            return _row_text(head, _pieces(record, self.row_format), full)
        if self.source is not None:
            head += f", {self.source.path}, {self.source.place_text}"
        features = sorted(_features(record).items())
        lines = [f"  {name}: {_values_text(some, full)}" for name, some in features]
        return "\n".join([head, *(lines or [f"  {_value_text(record, full)}"])])

    def json(self) -> str:
        """Returns it as one line of JSON.

        It has `features`, or for what is no tf.train.Example null, and `text` or
        `base64`. Of features, bytes that are no UTF-8 are an object with `base64`. A
        packed row has `pieces` instead, with all ids of each.
        """
        fields: dict[str, Any] = {"record": self.number, "bytes": len(self.record)}
        if self.row_format is not None:
            fields["pieces"] = [
                {"first": first, "ids": ids} | ({"removed": True} if removed else {})
                for first, ids, removed in _pieces(self.record, self.row_format)
            ]
            return json.dumps(fields)
        if self.source is not None:
            fields |= {"file": self.source.path, "place": self.source.place}
        features = _features(self.record)
        fields["features"] = {
            name: [_value_json(value) for value in values]
            for name, values in features.items()
        } or None
        if not features:
            value = _value_json(self.record)
            fields |= value if isinstance(value, dict) else {"text": value}
        return json.dumps(fields, ensure_ascii=False)


def _features(record: bytes) -> dict[str, Values]:
    """Returns the features of a tf.train.Example, none of another record."""
    try:
        return decode_example(record)
    except ValueError:
        return {}


def _value_json(value: bytes | float) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _values_text(values: Values, full: bool) -> str:
    some = values if full else values[:_VALUES_SHOWN]
    shown = ", ".join(_value_text(value, full) for value in some)
    if len(values) > len(some):
        shown += f", ... ({len(values):,} values)"
    return shown if len(values) == 1 else f"[{shown}]"


def _value_text(value: bytes | float, full: bool) -> str:
    if not isinstance(value, bytes):
        return f"{value:g}" if isinstance(value, float) else str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        some = value if full else value[:_BYTES_SHOWN]
        more = f" ... ({len(value):,} bytes)" if len(value) > len(some) else ""
        return some.hex(" ") + more
    short = full or len(text) <= _TEXT_WIDTH
    return repr(text if short else text[:_TEXT_WIDTH] + "...")


_IDS_SHOWN = 8


def packed_format(split: Split | None) -> RowFormat | None:
    """Returns the format of a split's packed rows, None for other records.

    Rows that are `tf.train.Example` are shown as such.
    """
    packed = None if split is None else split.parts[0].packed
    if packed is None or packed["rows"] != "packed":
        return None
    return RowFormat(packed["length"], packed["id_bytes"])


def _row_text(
    head: str, pieces: Sequence[tuple[int, list[int], bool]], full: bool
) -> str:
    """Returns a packed row as text: the first ids of each piece, or all."""
    tokens = plural(sum(len(ids) for _, ids, gone in pieces if not gone), "token")
    lines = [f"{head}, {tokens} in {plural(len(pieces), 'piece')}"]
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
