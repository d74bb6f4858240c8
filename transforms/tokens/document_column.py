"""The document of each record: its text, or the tokens that it holds already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.base.example import (
    BYTES,
    INTS,
    NO_KIND,
    RawFeature,
    raw_features,
)
from gristmill.dataset.base.varints import decode_varints, encode_varint, varint_at
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import FORMATS, SourceSpec, can_skip_nulls
from gristmill.transforms.tokens.tokenizer import Encoded, PlaceOf

# Key of a list's field in a Feature.
_KINDS = {0x0A: BYTES, 0x1A: INTS}


class OneFeature:
    """Finds a feature in records encoded the way all known writers do.

    About five times as fast as `gristmill.dataset.base.example.raw_features`, which
    reads all encodings that protocol buffers allow.

    Args:
        name: Name of the feature.
    """

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        self._entry = b"\x0a" + encode_varint(len(encoded)) + encoded + b"\x12"

    def find(self, record: bytes) -> RawFeature | None:
        """Returns the feature of a record, if it is one value of bytes, or integers.

        None for anything else, and for a record that is encoded in another way or
        damaged.
        """
        try:
            return self._find(record)
        except (IndexError, ValueError):
            return None

    def _find(self, record: bytes) -> RawFeature | None:
        entry, end = self._entry, len(record)
        size, at = varint_at(record, 1)
        if record[0] != 0x0A or at + size != end:
            return None
        found = found_stop = -1
        # Each entry: a name, then a value that extends to its end.
        while at < end:
            if record[at] != 0x0A:
                return None
            size = record[at + 1]
            at += 2
            if size > 0x7F:
                size, at = varint_at(record, at - 1)
            stop = at + size
            wanted = record.startswith(entry, at)
            if wanted:
                value = at + len(entry)
            else:
                size = record[at + 1]
                value = at + 3 + size
                if size > 0x7F or record[at] != 0x0A or record[value - 1] != 0x12:
                    return None
            size = record[value]
            value += 1
            if size > 0x7F:
                size, value = varint_at(record, value - 1)
            if value + size != stop:
                return None
            if wanted:
                found, found_stop = value, stop
            at = stop
        if at != end or found < 0:
            return None
        # A list of some kind, with one field.
        kind = _KINDS.get(record[found])
        for key in (record[found], 0x0A):
            size, after = varint_at(record, found + 1)
            if record[found] != key or after + size != found_stop:
                return None
            found = after
        part = record[found:found_stop]
        if kind is None or (kind == INTS and part[-1:] >= b"\x80"):
            return None
        return RawFeature(kind, [part])


_MOST_ID = (1 << 32) - 1
_ID_BYTES = 5  # The longest varint of an id.
_ANOTHER = "choose another feature with --column"


class DocumentColumn:
    """Extracts documents from records.

    Args:
        options: Options that name their feature.
        source: Rules for making the records.
    """

    def __init__(self, options: PackOptions, source: SourceSpec) -> None:
        self._name = options.column
        kept = "line" if source.format == "text" else f"column:{options.column}"
        # A user's function returns the type that it is called with: text for text.
        self._whole = not options.column or source.record == kept
        self._feature = OneFeature(options.column)
        self._format = source.format

    def texts(self, records: Sequence[bytes], place_of: PlaceOf) -> Sequence[bytes]:
        """Returns the text of each record, in UTF-8.

        Args:
            records: The records.
            place_of: Returns the place of a record, by its number among these.

        Raises:
            InputError: A record has no text.
        """
        texts = records
        if not self._whole:
            both = enumerate(records)
            texts = [self._text(record, number, place_of) for number, record in both]
        for number, text in enumerate(texts):
            if self._whole and text[:1] == b"\n":
                self._check_no_example(text, number, place_of)
            try:
                text.decode()
            except UnicodeDecodeError as e:
                raise InputError(
                    "the text of a document is not UTF-8",
                    where=f"{place_of(number)}, byte {e.start:,} of the text",
                    got=f"{text[e.start : e.start + 8]!r}: {e.reason}",
                    cure="decode the text where it is made, or with --map",
                ) from e
        return texts

    def tokens(self, records: Sequence[bytes], place_of: PlaceOf) -> Encoded:
        """Returns the tokens that each record holds; arguments are as in `texts`.

        Raises:
            InputError: A record has no tokens.
        """
        if FORMATS[self._format].tokens:
            words = np.frombuffer(b"".join(records), "<u4").astype(np.uint32)
            sizes = np.fromiter(map(len, records), np.int64, len(records))
            return Encoded(words, sizes // 4)
        # A user's function can make examples from text.
        if self._whole and records and self._feature.find(records[0]) is None:
            raise _no_tokenizer("the records are text", place_of(0))
        both = enumerate(records)
        payloads = [self._packed(record, number, place_of) for number, record in both]
        data = np.frombuffer(b"".join(payloads), np.uint8)
        stops = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
        lasts = np.flatnonzero(data < 0x80)
        # A negative number takes ten bytes.
        wrong = np.diff(lasts, prepend=-1) > _ID_BYTES
        if not wrong.any():
            ids = decode_varints(data)
            wrong = ids > _MOST_ID
        if wrong.any():
            at = np.searchsorted(stops, lasts[np.argmax(wrong)], side="right")
            raise InputError(
                f"the feature {self._name!r} holds a number that is no token",
                where=place_of(int(at)),
                expected=f"0 to {_MOST_ID:,}",
                got="a negative number, or a larger one",
                cure="correct the tokens where they are made, or with --map",
            )
        counts = np.diff(np.searchsorted(lasts, stops), prepend=0)
        return Encoded(ids.astype(np.uint32), counts)

    def _check_no_example(self, text: bytes, number: int, place_of: PlaceOf) -> None:
        """Refuses examples that a user's function seems to have made from text."""
        if self._name and self._feature.find(text) is not None:
            raise InputError(
                f"a text seems to be a tf.train.Example with a feature {self._name!r}",
                where=place_of(number),
                expected="text: the inputs are text, and --map returns what it gets",
                got=f"{text[:24]!r}",
                cure="return the text itself from the function; if this is text, give "
                "--column -",
            )

    def _text(self, record: bytes, number: int, place_of: PlaceOf) -> bytes:
        found = self._feature.find(record)
        if found is None or found.kind != BYTES:
            found = self._in_any_encoding(record, place_of(number))
            is_ids = found.kind == INTS
            if is_ids or len(found.parts) > 1:
                what = "holds tokens already" if is_ids else "has several values"
                better = "leave out --tokenizer" if is_ids else "join them with --map"
                raise InputError(
                    f"the feature {self._name!r} {what}",
                    where=place_of(number),
                    expected="one text, as there is a tokenizer",
                    got="integers" if is_ids else f"{len(found.parts):,} values",
                    cure=f"{better}, or {_ANOTHER}",
                )
        return found.parts[0] if found.parts else b""

    def _packed(self, record: bytes, number: int, place_of: PlaceOf) -> bytes:
        """Returns the numbers of a record as varints, one after the other."""
        found = self._feature.find(record)
        if found is None or found.kind != INTS:
            found = self._in_any_encoding(record, place_of(number))
            if found.kind == BYTES:
                what = f"the feature {self._name!r} is text"
                raise _no_tokenizer(what, place_of(number))
        return b"".join(found.parts)

    def _in_any_encoding(self, record: bytes, place: str) -> RawFeature:
        try:
            features = raw_features(record)
        except ValueError as e:
            raise InputError(
                "the record is not a tf.train.Example",
                where=place,
                got=str(e),
                cure="give --column - if the records are the text itself, or make "
                "examples of them with --map",
            ) from e
        found = features.get(self._name.encode())
        if found is None:
            names = [name.decode(errors="replace") for name in features]
            nulls = ""
            if can_skip_nulls(self._format):
                nulls = "leave out rows where it is null, with --nulls skip; "
            elif self._format == "arrayrecord":
                nulls = "if it was null in the original files, convert them again with "
                nulls += "--nulls skip; "
            raise InputError(
                f"the record has no feature {self._name!r}",
                where=place,
                expected=f"one of {some_of(names, 20)}" if names else "a feature",
                got=None if names else "an example without features",
                cure=f"{_ANOTHER}; {nulls}or leave out such records with --map",
            )
        if found.kind not in (NO_KIND, BYTES, INTS):
            raise InputError(
                f"the feature {self._name!r} holds no document",
                where=place,
                expected="text, or integers that are its tokens",
                got="floats",
                cure=_ANOTHER,
            )
        return found


def _no_tokenizer(what: str, place: str) -> InputError:
    return InputError(
        f"{what}, and there is no tokenizer",
        where=place,
        expected="integers, the tokens of a document",
        cure=f"give --tokenizer, or {_ANOTHER}",
    )
