"""A record on the page: its content, its place, and its source."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.base.example import Values, decode_example
from gristmill.dataset.packed.row_format import RowFormat, RowsKind, decode_rows
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.packed_shard import packed_of
from gristmill.loader.provenance.trace import Location, SourcePlace, locate_record
from gristmill.pipelines.text.facts import fact_pairs, plural
from gristmill.pipelines.text.places import place_facts, source_facts
from gristmill.pipelines.text.supervision import spans_of_piece

if TYPE_CHECKING:
    from gristmill.transforms.tokens.tokenizer import Tokenizer

_VALUES, _NUMBERS = 32, 256
_CHARACTERS, _BYTES, _TOKENS = 20_000, 512, 16_384
_PREVIEW_TOKENS, _PREVIEW_CHARACTERS = 32, 80
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# Images that pages show without running anything in them; SVG is text.
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
}


def shown(
    dataset: Dataset,
    number: int,
    *,
    name: str | None = None,
    texts: Tokenizer | None = None,
    image_bytes: int,
) -> dict[str, Any]:
    """Returns a record as JSON values, or the error if it cannot be read.

    Args:
        dataset: Its dataset.
        number: Its number there.
        name: The dataset's name in a mixture.
        texts: Shows tokens of packed rows as text; None for ids alone.
        image_bytes: Maximum size of an image.
    """
    try:
        return _shown(dataset, number, name, texts, image_bytes)
    except GristmillError as e:
        return {"error": [[head, str(text)] for head, text in e.facts().items()]}
    except OSError as e:
        return {"error": [["what", e.strerror or str(e)], ["where", str(e.filename)]]}


def _shown(
    dataset: Dataset,
    number: int,
    name: str | None,
    texts: Tokenizer | None,
    image_bytes: int,
) -> dict[str, Any]:
    (data,) = dataset.read([number])
    location = locate_record(dataset, number, name=name)
    bare = dataclasses.asdict(dataclasses.replace(location, pieces=()))
    del bare["pieces"]
    found = {
        "bytes": len(data),
        "place": _pairs(place_facts(bare)),
        "source": _source(location),
    }
    (shard,) = dataset.find([number])[0].tolist()
    part, own = dataset.stored.part_of(shard)
    packed = packed_of(part, own)
    if packed is None:
        fields = [*_fields(data, image_bytes)]
        texts_in = (one["shown"][0] for one in fields if one["kind"] == "text")
        text = max(texts_in, key=len, default="")
        return found | {"fields": fields, "preview": _line(text)}
    row_format = RowFormat(packed.length, packed.id_bytes, cast(RowsKind, packed.rows))
    pieces = [*_pieces(data, row_format, location, texts)]
    first = pieces[0]["tokens"][:_PREVIEW_TOKENS] if pieces else []
    told = "".join(text if text is not None else f"{token} " for token, text in first)
    return found | {"pieces": pieces, "length": packed.length, "preview": _line(told)}


def _line(text: str) -> str:
    return " ".join(text[: 16 * _PREVIEW_CHARACTERS].split())[:_PREVIEW_CHARACTERS]


def _source(found: Location) -> str:
    """Returns the source of a record as a line; for a row that of its first piece."""
    first, more = next(iter(found.pieces), found), len(found.pieces) - 1
    text = ", ".join(text for _, text in _source_facts(first))
    return f"{text}, and {more:,} more" if more > 0 else text


def _source_facts(place: SourcePlace) -> list[list[str]]:
    return _pairs(source_facts(dataclasses.asdict(place)))


def _pairs(facts: dict[str, Any]) -> list[list[str]]:
    """Returns facts for the page, as lines with a head or none."""
    return [
        ["" if number else head, line]
        for head, lines in fact_pairs(facts)
        for number, line in enumerate(lines)
    ]


def _pieces(
    data: bytes, row_format: RowFormat, location: Location, texts: Tokenizer | None
) -> Iterator[dict[str, Any]]:
    """Yields the pieces of a packed row: tokens, spans of messages, and sources."""
    row = decode_rows(row_format, [data])
    for number, piece in enumerate(location.pieces):
        end = min(piece.end_token, _TOKENS)
        ids: list[int] = row.tokens[piece.begin_token : end].tolist()
        known = [None] * len(ids) if texts is None else texts.texts(ids)
        yield {
            "begin": piece.begin_token,
            "end": piece.end_token,
            "document": piece.document,
            "first": piece.first_token,
            "source": _source_facts(piece),
            "tokens": [*zip(ids, known, strict=True)],
            "spans": row.spans and [*spans_of_piece(row.spans, number)],
        }


def _fields(record: bytes, image_bytes: int) -> Iterator[dict[str, Any]]:
    """Yields the features of a `tf.train.Example`, or one field of another record."""
    try:
        features = decode_example(record)
    except ValueError:
        features = {}
    for name, values in sorted(features.items()) or [("", [record])]:
        kind, shown, cut = _values(values, image_bytes)
        cut = _more(len(values) - len(shown), "value") or cut
        found = {"values": len(values), "kind": kind, "shown": shown, "cut": cut}
        yield {"name": name, **found}


def _values(values: Values, image_bytes: int) -> tuple[str, list[Any], str | None]:
    """Returns the kind of values, some as JSON, and a note on those left out."""
    some = [value for value in values[:_VALUES] if isinstance(value, bytes)]
    longest = max(map(len, some), default=0)
    if not some:
        return "numbers", [_number(value) for value in values[:_NUMBERS]], None
    if all(types := [_image_type(value) for value in some]):
        if longest > image_bytes:
            return "image", [None] * len(some), "large images; --records has them"
        coded = [base64.b64encode(value).decode() for value in some]
        named = zip(types, coded, strict=True)
        urls = [f"data:image/{kind};base64,{data}" for kind, data in named]
        return "image", urls, None
    try:
        texts = [value.decode() for value in some]
    except UnicodeDecodeError:
        texts = []
    # Control characters such as zeros: numbers, or a binary format.
    if not texts or any(map(_CONTROLS.search, texts)):
        cut = _more(longest - _BYTES, "byte")
        return "bytes", [value[:_BYTES].hex(" ") for value in some], cut
    cut = _more(max(map(len, texts)) - _CHARACTERS, "character")
    return "text", [text[:_CHARACTERS] for text in texts], cut


def _more(count: int, thing: str) -> str | None:
    return plural(count, f"more {thing}") if count > 0 else None


def _number(value: Any) -> Any:
    """Returns a number, as text if JSON or JavaScript would change it."""
    exact = abs(value) <= 1 << 53 if isinstance(value, int) else np.isfinite(value)
    return value if exact else str(value)


def _image_type(value: bytes) -> str | None:
    for magic, kind in _IMAGES.items():
        if value.startswith(magic):
            return kind
    return "webp" if value[:4] == b"RIFF" and value[8:12] == b"WEBP" else None
