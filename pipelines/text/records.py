"""Records and packed rows, as `gristmill head` and `trace --show` print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.example import Values, decode_example
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.pipelines.text.printer import json_value, plural
from gristmill.pipelines.text.supervision import (
    BEGIN,
    END,
    by_token,
    marked,
    token_texts,
)

if TYPE_CHECKING:
    from gristmill.loader.data.dataset import Dataset
    from gristmill.transforms.sources.source import NumberedRecord
    from gristmill.transforms.tokens.tokenizer import Tokenizer

_TEXT_WIDTH = 72
_VALUES_SHOWN = 8
_BYTES_SHOWN = 24


class ShownRecord(NamedTuple):
    """A record to show.

    Attributes:
        number: Its number.
        record: The record.
        row_format: The encoding of packed rows; None for other records.
        source: Its place in the input files, to show it too.
        texts: Shows the tokens of packed rows as text; None for ids.
    """

    number: int
    record: bytes
    row_format: RowFormat | None = None
    source: NumberedRecord | None = None
    texts: Tokenizer | None = None

    def text(self, *, full: bool = False) -> str:
        """Returns the record as text: its features, a string, bytes or ids.

        Args:
            full: Whether to show long values in full.
        """
        record, head = self.record, f"record {self.number}: {len(self.record):,} bytes"
        if self.row_format is not None:
            return self._row_text(head, self.row_format, full)
        if self.source is not None:
            head += f", {self.source.path}, {self.source.place_text}"
        features = sorted(features_of(record).items())
        lines = [f"  {name}: {_values_text(some, full)}" for name, some in features]
        return "\n".join([head, *(lines or [f"  {_value_text(record, full)}"])])

    def as_dict(self) -> dict[str, Any]:
        """Returns the record for JSON.

        It has `features`; if it is not a tf.train.Example, these are null, and it has
        `text` or `base64`. Bytes in features that are not UTF-8 are an object with
        `base64`. A packed row has `pieces` instead, each with all ids, `text` with a
        tokenizer, and `spans` of the messages of a conversation.
        """
        fields: dict[str, Any] = {"record": self.number, "bytes": len(self.record)}
        if self.row_format is not None:
            fields["pieces"] = [
                piece.fields(self.texts)
                for piece in _pieces(self.record, self.row_format)
            ]
            return fields
        if self.source is not None:
            fields |= {"file": self.source.path, "place": self.source.place}
        features = features_of(self.record)
        fields["features"] = features or None
        if not features:
            value = json_value(self.record)
            fields |= value if isinstance(value, dict) else {"text": value}
        return fields

    def _row_text(self, head: str, row_format: RowFormat, full: bool) -> str:
        """Returns a packed row as text: the first tokens of each piece, or all."""
        pieces = _pieces(self.record, row_format)
        tokens = plural(sum(len(piece.ids) for piece in pieces), "token")
        lines = [f"{head}, {tokens} in {plural(len(pieces), 'piece')}"]
        if any(piece.spans is not None for piece in pieces):
            trained = sum(int(piece.trained.sum()) for piece in pieces)
            lines[0] += f", {trained:,} of them trained: in {BEGIN} {END}"
        lines += [f"  {piece.shown(self.texts, full)}" for piece in pieces]
        return "\n".join(lines)


def shown_record(dataset: Dataset, number: int, texts: Tokenizer | None) -> ShownRecord:
    """Returns a record of a dataset, to show it."""
    shards, _ = dataset.find([number])
    part, _ = dataset.stored.part_of(int(shards[0]))
    (record,) = dataset.read([number])
    if texts is not None and part.committed is not None:
        texts.check_packed(part.committed.packed, repr(part))
    return ShownRecord(number, record, packed_format(part.committed), texts=texts)


def features_of(record: bytes) -> dict[str, Values]:
    """Returns the features of a tf.train.Example, none of another record."""
    try:
        return decode_example(record)
    except ValueError:
        return {}


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
_TEXTS_SHOWN = 64


def packed_format(split: Split | None) -> RowFormat | None:
    """Returns the format of a split's packed rows, None for other records.

    Rows that are `tf.train.Example` count as other records.
    """
    packed = None if split is None else split.parts[0].packed
    if packed is None or packed["rows"] != "packed":
        return None
    return RowFormat(packed["length"], packed["id_bytes"])


class _Piece(NamedTuple):
    """A piece of a packed row.

    Attributes:
        first: The position of its first token in its document.
        ids: Its tokens.
        trained: bool [tokens], whether each is trained on.
        spans: The spans of its messages; None if the row has none.
    """

    first: int
    ids: list[int]
    trained: npt.NDArray[np.bool_]
    spans: list[dict[str, Any]] | None

    def fields(self, texts: Tokenizer | None) -> dict[str, Any]:
        """Returns the piece for JSON."""
        found: dict[str, Any] = {"first": self.first, "ids": self.ids}
        if texts is not None:
            found["text"] = texts.decode(self.ids)
        return found if self.spans is None else found | {"spans": self.spans}

    def shown(self, texts: Tokenizer | None, full: bool) -> str:
        """Returns the piece as a line of its first tokens, or of all."""
        most = _IDS_SHOWN if texts is None else _TEXTS_SHOWN
        some = self.ids if full else self.ids[:most]
        trained = self.trained[: len(some)]
        if texts is None:
            shown = marked([*map(str, some)], trained, " ")
        else:
            shown = marked(token_texts(texts, some), trained, "")
            shown = shown.replace("\n", "\\n")
        if len(self.ids) > len(some):
            shown += f" ... ({len(self.ids):,} tokens)"
        begin = f"from token {self.first:,} of its document: " if self.first else ""
        return begin + shown


def _pieces(record: bytes, row_format: RowFormat) -> list[_Piece]:
    """Returns the pieces of a row."""
    row = decode_rows(row_format, [record])
    parts = np.split(row.tokens, np.cumsum(row.lengths)[:-1])
    spans = row.spans
    return [
        _Piece(
            first,
            ids.tolist(),
            by_token(spans, number, len(ids))["trained"],
            None if spans is None else [*spans.of_document(number)],
        )
        for number, (first, ids) in enumerate(
            zip(row.firsts.tolist(), parts, strict=True)
        )
    ]
