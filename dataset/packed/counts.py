"""Counts of packed rows, and the description of a split of them in `dataset.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedCounts:
    """Counts of the rows of one shard, or of several added up.

    Tokens of all documents = tokens in rows + truncated tokens. Places of all rows =
    tokens + padding tokens. A row has `tokens - pieces` targets.

    Attributes:
        documents: Documents that have a token, after `--map`.
        empty_documents: Documents without a token. No row has them.
        tokens: Tokens in rows, added ones included.
        special_tokens: Those added by `--bos` and `--eos`.
        pieces: Pieces of documents in rows.
        padding_tokens: Places of rows without a token.
        most_pieces: Largest number of pieces in a row.
        begun_documents: Documents that begin with the token of `--bos`.
        ended_documents: Documents that end with the token of `--eos`.
        truncated_documents: Documents that lost their end.
        truncated_tokens: The tokens that they lost.
        text_bytes: Size of the text as UTF-8, 0 for documents that were already tokens.
        unknown_tokens: Tokens that stand for text that the vocabulary does not have.
        special_texts: How often a text looked like a special token.
        trained_tokens: Of conversations, the tokens that are trained on.
        trained_targets: Those of them that have a predecessor in their piece: the
            places of rows that the loss counts.
        open_turns: Trained messages after which the template writes no end of turn.
        aside_rejected: Conversations set aside because they are malformed, the template
            fails, or the trained tokens cannot be proved.
        aside_untrained: Conversations set aside without a trained token.
        aside_long: Conversations set aside as too long for a row.
    """

    documents: int = 0
    empty_documents: int = 0
    tokens: int = 0
    special_tokens: int = 0
    pieces: int = 0
    padding_tokens: int = 0
    most_pieces: int = 0
    begun_documents: int = 0
    ended_documents: int = 0
    truncated_documents: int = 0
    truncated_tokens: int = 0
    text_bytes: int = 0
    unknown_tokens: int = 0
    special_texts: int = 0
    trained_tokens: int = 0
    trained_targets: int = 0
    open_turns: int = 0
    aside_rejected: int = 0
    aside_untrained: int = 0
    aside_long: int = 0

    @property
    def targets(self) -> int:
        """Tokens that have a successor in their piece."""
        return self.tokens - self.pieces

    @property
    def set_aside(self) -> dict[str, int]:
        """The conversations that were set aside, by reason; only reasons that occur."""
        found = {name: getattr(self, f"aside_{name}") for name in ASIDE}
        return {name: count for name, count in found.items() if count}

    def as_dict(self) -> dict[str, int]:
        """Returns the counts by name, without those of `OPTIONAL` that are 0."""
        fields = dataclasses.asdict(self)
        return {k: n for k, n in fields.items() if n or k not in OPTIONAL}

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds counts from `as_dict`, among other fields.

        Raises KeyError, TypeError or ValueError if one is missing.
        """
        known = dict.fromkeys(OPTIONAL, 0) | dict(fields)
        return cls(**{f.name: int(known[f.name]) for f in dataclasses.fields(cls)})

    def __add__(self, other: PackedCounts) -> PackedCounts:
        added = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in dataclasses.fields(self)
        }
        added[MOST_PIECES] = max(self.most_pieces, other.most_pieces)
        return PackedCounts(**added)


MOST_PIECES = "most_pieces"
"""The count of several parts that is not a sum, but a maximum."""

_NAMES = tuple(field.name for field in dataclasses.fields(PackedCounts))

OPTIONAL = _NAMES[_NAMES.index("begun_documents") :]
"""The names of counts that are not written if all are 0."""

ASIDE = ("rejected", "untrained", "long")
"""Reasons to set a conversation aside."""

IN_ROWS = (
    *("documents", "tokens", "pieces", "padding_tokens", MOST_PIECES),
    *("begun_documents", "ended_documents", "trained_tokens", "trained_targets"),
)
"""The names of counts that rows and their segment index show."""

PACKED_COLUMNS = {f"packed_{name}": "<i8" for name in _NAMES}
"""Columns of the table of shards that have the counts, and their types on disk."""


FORMAT = 1
SUPERVISED_FORMAT = 2
"""The format of rows with spans of messages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedSplit:
    """A split of packed rows.

    Attributes:
        rows: `packed`, rows as docs/reference/format.md describes them; `example`, a
            `tf.train.Example` each.
        length: Maximum tokens of a row.
        id_bytes: Bytes that an id needs: 2, 3 or 4. Also the bytes of a token in a
            `packed` row, before compression.
        vocabulary_size: Upper bound of ids, exclusive.
        method: How documents were put into rows, such as `best-fit`.
        counts: Counts of the rows of all shards.
        supervised: Whether the rows have spans of messages.
        tokenizer: Digest of the tokenizer's file; "" where documents were tokens.
        bos_id, eos_id: The tokens that begin and end every document; None for none.
    """

    rows: str
    length: int
    id_bytes: int
    vocabulary_size: int
    method: str
    counts: PackedCounts
    supervised: bool = False
    tokenizer: str = ""
    bos_id: int | None = None
    eos_id: int | None = None

    def encode(self) -> dict[str, Any]:
        """Returns the description for `dataset.json`."""
        own = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("counts", "supervised")
        }
        known = SUPERVISED_FORMAT if self.supervised else FORMAT
        return {"format": known, **own, **self.counts.as_dict()}

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, where: str) -> Self:
        """Parses a description.

        Args:
            fields: The description in `dataset.json`.
            where: The dataset, for messages.

        Raises:
            FormatVersionError: Its format is unknown.
            InvalidDatasetError: It is invalid.
        """
        if (known := fields.get("format")) not in (FORMAT, SUPERVISED_FORMAT):
            raise FormatVersionError.unknown(
                "packed rows", where=where, expected=SUPERVISED_FORMAT, got=known
            )
        try:
            found = cls(
                rows=str(fields["rows"]),
                length=int(fields["length"]),
                id_bytes=int(fields["id_bytes"]),
                vocabulary_size=int(fields["vocabulary_size"]),
                method=str(fields["method"]),
                counts=PackedCounts.of_dict(fields),
                supervised=known == SUPERVISED_FORMAT,
                tokenizer=str(fields.get("tokenizer", "")),
                bos_id=fields.get("bos_id"),
                eos_id=fields.get("eos_id"),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise _invalid(where, f"{type(e).__name__}: {e}") from e
        if wrong := {k: v for k, v in found.encode().items() if fields.get(k, v) != v}:
            raise _invalid(where, f"values of another kind: {sorted(wrong)}")
        if found.length < 1:
            raise _invalid(where, f"rows of {found.length} tokens")
        return found


def _invalid(where: str, got: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        "description of packed rows cannot be read",
        where=where,
        got=got,
        cure="restore dataset.json from a copy, or pack the documents again",
    )
