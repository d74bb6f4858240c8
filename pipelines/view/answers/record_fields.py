"""A record as fields that a page can show: texts, images, numbers and bytes."""

from __future__ import annotations

import base64
import codecs
import dataclasses
import re
from typing import Any

from gristmill.dataset.base.example import Values, decode_example

_TEXT_CHARACTERS = 20_000
_NUMBERS = 256
_BYTES = 512
_IMAGE_BYTES = 8 << 20
"""A larger image is not sent: the page says so."""
_RECORD_IMAGE_BYTES = 16 << 20
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_BEGIN_BYTES = 1000
_LISTED = 32
"""Texts or images of one field."""

# What a file begins with -> its media type. These are the images that pages show
# without running anything in them; SVG is text.
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a record.

    Attributes:
        name: Its name; "" for the whole of a record that is not a `tf.train.Example`.
        dtype: `bytes`, `float` or `int64`; "" of a feature without values.
        values: How many values it has.
        kind: `text`, `image`, `numbers` or `bytes`: what `shown` is.
        shown: Texts, data URLs, numbers, or bytes in hexadecimal digits.
        cut: What is not shown of it, in words; None if all is.
    """

    name: str
    dtype: str
    values: int
    kind: str
    shown: list[Any]
    cut: str | None


def fields_of(record: bytes) -> list[Field]:
    """Returns the features of a `tf.train.Example`, or one field of another record."""
    try:
        features = decode_example(record)
    except ValueError:
        features = {}
    if not features:
        return [_bytes_field("", [record], _Room())]
    room = _Room()
    return [_field(name, values, room) for name, values in sorted(features.items())]


class _Room:
    """How many bytes of images a record may still show."""

    def __init__(self) -> None:
        self.left = _RECORD_IMAGE_BYTES


def _field(name: str, values: Values, room: _Room) -> Field:
    if not values:
        return Field(name=name, dtype="", values=0, kind="numbers", shown=[], cut=None)
    if isinstance(values[0], bytes):
        return _bytes_field(name, [v for v in values if isinstance(v, bytes)], room)
    shown = list(values[:_NUMBERS])
    more = len(values) - len(shown)
    return Field(
        name=name,
        dtype="float" if isinstance(values[0], float) else "int64",
        values=len(values),
        kind="numbers",
        shown=shown,
        cut=f"{more:,} more values" if more else None,
    )


def _bytes_field(name: str, values: list[bytes], room: _Room) -> Field:
    some = values[:_LISTED]
    more = f"{len(values) - len(some):,} more values" if some != values else None
    kinds = {image_type(value) for value in some}
    if None not in kinds:
        kind, parts = "image", [_image(value, room) for value in some]
    elif (texts := _texts(some)) is not None:
        kind, parts = "text", [_cut_text(text) for text in texts]
    else:
        kind, parts = "bytes", [_cut_bytes(value) for value in some]
    cuts = [*(cut for _, cut in parts if cut), *([more] if more else [])]
    return Field(
        name=name,
        dtype="bytes",
        values=len(values),
        kind=kind,
        shown=[shown for shown, _ in parts],
        cut="; ".join(dict.fromkeys(cuts)) or None,
    )


def image_type(value: bytes) -> str | None:
    """Returns the media type of an image that pages can show, None of other bytes.

    >>> image_type(b"GIF89a..."), image_type(b"<svg>")
    ('image/gif', None)
    """
    for magic, media_type in _MAGIC.items():
        if value.startswith(magic):
            return media_type
    return "image/webp" if value[:4] == b"RIFF" and value[8:12] == b"WEBP" else None


def _image(value: bytes, room: _Room) -> tuple[str | None, str | None]:
    if len(value) > min(_IMAGE_BYTES, room.left):
        return None, f"an image of {len(value):,} bytes, which is too large to show"
    room.left -= len(value)
    return f"data:{image_type(value)};base64,{base64.b64encode(value).decode()}", None


def _texts(values: list[bytes]) -> list[str] | None:
    """Returns bytes as texts, None if some are not text."""
    try:
        texts = [value.decode() for value in values]
    except UnicodeDecodeError:
        return None
    # Zeros and the like: numbers, or a format of its own.
    if any(map(_CONTROLS.search, texts)):
        return None
    return texts


def longest_text(record: bytes) -> str | None:
    """Returns the beginning of the longest text of a record, None without text."""
    try:
        features = decode_example(record)
    except ValueError:
        features = {}
    firsts = [values[0] for values in features.values() if values]
    found = [one for one in firsts if isinstance(one, bytes)]
    for value in sorted(found if features else [record], key=len, reverse=True):
        if not image_type(value):
            decoder = codecs.getincrementaldecoder("utf-8")()
            try:
                text = decoder.decode(value[:_BEGIN_BYTES])
            except UnicodeDecodeError:
                continue
            if not _CONTROLS.search(text):
                return text
    return None


def _cut_text(text: str) -> tuple[str, str | None]:
    more = len(text) - _TEXT_CHARACTERS
    if more <= 0:
        return text, None
    return text[:_TEXT_CHARACTERS], f"{more:,} more characters"


def _cut_bytes(value: bytes) -> tuple[str, str | None]:
    more = len(value) - _BYTES
    return value[:_BYTES].hex(" "), f"{more:,} more bytes" if more > 0 else None
